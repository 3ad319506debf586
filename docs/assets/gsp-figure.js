// Interactive figure of Generalized Sum Pooling: the closed form on real local features, computed on the page.
// Each element of class "gsp-figure" becomes one figure. Its data are in gsp-figure-data.js.
(() => {
  'use strict';

  /** Return the threshold tau with mean(sigmoid(tau + l)) = mu, by bisection of its bracket. */
  function threshold(scores, mu) {
    const logit = Math.log(mu / (1 - mu));
    let [low, high] = [logit - Math.max(...scores), logit - Math.min(...scores)];
    for (let step = 0; step < 100; step++) {
      const tau = (low + high) / 2;
      const mean = scores.reduce((sum, l) => sum + 1 / (1 + Math.exp(-tau - l)), 0) / scores.length;
      if (mean < mu) low = tau; else high = tau;
    }
    return (low + high) / 2;
  }

  /** Return scores l, threshold tau, weights p, and attributes z of GSP for costs c, one row per local feature. */
  function gsp(costs, mu, eps) {
    const scores = [];
    const affinities = costs.map((row) => {
      const most = Math.max(...row.map((c) => -eps * c));
      const powers = row.map((c) => Math.exp(-eps * c - most));
      const sum = powers.reduce((a, b) => a + b, 0);
      scores.push(most + Math.log(sum));
      return powers.map((power) => power / sum);
    });
    const n = scores.length;
    const tau = mu < 1 ? threshold(scores, mu) : Infinity;
    const weights = scores.map((l) => 1 / (1 + Math.exp(-tau - l)) / (n * mu));
    const attributes = affinities[0].map((_, i) => weights.reduce((sum, p, j) => sum + p * affinities[j][i], 0));
    return { scores, tau, weights, attributes };
  }

  /** Return rows of an array that is stored as 16-bit integers. */
  function restore({ int16, scale, shape: [rows, columns] }) {
    const bytes = Uint8Array.from(atob(int16), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Array.from({ length: rows }, (_, r) =>
      Array.from({ length: columns }, (_, c) => scale * view.getInt16(2 * (r * columns + c), true)));
  }

  /** Return distances of all features to all prototypes, after scaling each vector to at most unit length. */
  function distances(features, prototypes) {
    const clip = (v) => {
      const length = Math.max(1, Math.hypot(...v));
      return v.map((x) => x / length);
    };
    const w = prototypes.map(clip);
    return features.map(clip).map((f) => w.map((one) => Math.hypot(...one.map((x, k) => x - f[k]))));
  }

  const STOPS = [
    [0, 0, 4], [17, 10, 48], [50, 10, 94], [87, 16, 110], [120, 28, 109], [154, 40, 101], [188, 55, 84],
    [216, 76, 62], [237, 105, 37], [249, 142, 9], [251, 182, 26], [244, 223, 83], [252, 255, 164],
  ];
  /** Return the inferno color of a weight / mean weight, from 0 to 4. */
  function heat(relative) {
    const at = Math.min(Math.max(relative / 4, 0), 1) * (STOPS.length - 1);
    const below = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[below].map((part, k) => Math.round(part + (at - below) * (STOPS[below + 1][k] - part)));
  }

  const tag = (name, attributes = {}, ...children) => {
    const one = name.startsWith('svg:') ? document.createElementNS('http://www.w3.org/2000/svg', name.slice(4))
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    one.append(...children);
    return one;
  };
  const signed = (text) => text.replace('-', '−');
  const percent = (x) => `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)}%`;
  const [W, H, LEFT, BOTTOM, TOP] = [320, 132, 34, 30, 8]; // plots, in units of their view box

  /** A small plot with a title, axis labels, and ticks; `draw` adds marks in plot coordinates. */
  function plot(title, xLabel) {
    const body = tag('svg:g');
    const svg = tag('svg:svg', { viewBox: `0 0 ${W} ${H}`, role: 'img' }, body);
    const figure = tag('div', { class: 'gsp-plot' }, tag('p', {}, title), svg);
    return {
      figure,
      draw(alt, [x0, x1], [y0, y1], xTicks, yTicks, marks) {
        const x = (v) => LEFT + ((v - x0) / (x1 - x0)) * (W - LEFT - 8);
        const y = (v) => TOP + ((y1 - v) / (y1 - y0)) * (H - BOTTOM - TOP);
        svg.setAttribute('aria-label', alt);
        const grid = yTicks.flatMap(([v, text]) => [
          tag('svg:line', { class: 'grid', x1: LEFT, x2: W - 8, y1: y(v), y2: y(v) }),
          tag('svg:text', { x: LEFT - 5, y: y(v) + 4, 'text-anchor': 'end' }, text),
        ]);
        const below = xTicks.map(([v, text]) => tag('svg:text', { x: x(v), y: H - BOTTOM + 13, 'text-anchor': 'middle' }, text));
        const label = tag('svg:text', { x: (LEFT + W) / 2, y: H - 3, 'text-anchor': 'middle' }, xLabel);
        body.replaceChildren(...grid, ...below, label, ...marks(x, y));
      },
    };
  }

  const bars = (values, order, highlight) => (x, y) => order.map((index, rank) => {
    const [left, right] = [x(rank + 0.1), x(rank + 0.9)];
    const height = Math.max(0, y(0) - y(values[index]));
    const css = index === highlight ? 'bar chosen' : 'bar';
    return tag('svg:rect', { class: css, x: left, width: right - left, y: y(values[index]), height });
  });

  function slider(name, symbol, { min, max, step, value }, show) {
    const output = tag('output', { 'aria-hidden': 'true' });
    const input = tag('input', { type: 'range', min, max, step, value, 'aria-label': `${name} ${symbol}` });
    const update = () => { output.textContent = show(Number(input.value)); input.setAttribute('aria-valuetext', output.textContent); };
    input.addEventListener('input', update);
    update();
    const row = tag('div', { class: 'slider' }, tag('span', {}, `${name} `, tag('i', {}, symbol)), output, input);
    return { row, input, update };
  }

  function start(element) {
    const data = window.winnowGspData;
    const prototypes = restore(data.prototypes);
    const costs = data.images.map((one) => distances(restore(one.features), prototypes));
    const n = data.rows * data.columns;
    let chosen = 0;
    let location = null; // under the pointer

    const picture = tag('img', { alt: '' });
    const canvas = tag('canvas', { width: data.columns * 8, height: data.rows * 8, 'aria-hidden': 'true' });
    const cell = tag('div', { class: 'cell', hidden: '' });
    const frame = tag('div', { class: 'frame' }, picture, canvas, cell);
    const scale = tag('div', { class: 'scale' },
      tag('i', {}), tag('p', { 'aria-hidden': 'true' }, ...['0', '1', '2', '3', '≥ 4'].map((text) => tag('span', {}, text))),
      tag('p', {}, 'weight / mean weight'));
    const choices = data.images.map((one, index) => {
      const button = tag('button', { type: 'button', 'aria-label': `Collage with ${one.name}`, title: one.name }, tag('img', { src: one.picture, alt: '' }));
      button.addEventListener('click', () => { chosen = index; draw(); });
      return button;
    });
    const mu = slider('Fraction kept', 'μ', { min: 0.01, max: 1, step: 0.01, value: data.mu }, (v) => v.toFixed(2));
    const eps = slider('Sharpness', 'ε', { min: 0, max: 60, step: 0.5, value: data.eps }, (v) => String(v));
    const presets = [['Demo', data.mu, data.eps], ['Default', 0.3, 5], ['GAP: μ = 1', 1, data.eps], ['Hard', data.mu, 60]].map(
      ([name, m, e]) => {
        const button = tag('button', { type: 'button' }, name);
        button.addEventListener('click', () => {
          [mu.input.value, eps.input.value] = [m, e];
          mu.update(); eps.update(); draw();
        });
        return button;
      });
    const summary = tag('p', { class: 'summary', 'aria-live': 'polite' });
    const selection = plot('Fraction kept, s = σ(τ + l)', 'score l of a local feature');
    const sorted = plot('Weight / mean weight, largest first', 'local feature');
    const shares = plot('Attributes z', 'prototype');
    element.replaceChildren(
      tag('div', { class: 'choices', role: 'group', 'aria-label': 'Collage' }, ...choices),
      tag('div', { class: 'columns' },
        tag('div', { class: 'left' }, frame, scale),
        tag('div', { class: 'right' }, mu.row, eps.row, tag('div', { class: 'presets' }, ...presets))),
      tag('div', { class: 'plots' }, selection.figure, sorted.figure, shares.figure, summary));

    function draw() {
      const [m, e] = [Number(mu.input.value), Number(eps.input.value)];
      const result = gsp(costs[chosen], m, e);
      element.result = { image: chosen, mu: m, eps: e, ...result }; // read by the tests
      const { scores, tau, weights, attributes } = result;
      const relative = weights.map((p) => n * p);
      const one = data.images[chosen];
      choices.forEach((button, index) => button.setAttribute('aria-pressed', String(index === chosen)));
      picture.src = one.picture;
      picture.alt = `Collage with ${one.name} and three distractors, under the heat map of its pooling weights`;
      paint(canvas, relative, data);
      const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]);
      let sum = 0;
      const half = 1 + order.findIndex((j) => (sum += weights[j]) >= 0.5 - 1e-12);
      const top = attributes.indexOf(Math.max(...attributes));
      summary.replaceChildren(...[
        `Threshold τ = ${Number.isFinite(tau) ? signed(tau.toFixed(3)) : '∞'}.`,
        `${half} of ${n} locations hold half of the weight.`,
        `Largest attribute: ${percent(attributes[top])}, prototype ${top}.`,
        location === null ? 'Point at the picture to read one location.' : `This location: ${relative[location].toFixed(2)} times `
          + `the mean weight, nearest to prototype ${costs[chosen][location].indexOf(Math.min(...costs[chosen][location]))}.`,
      ].map((line) => tag('span', {}, line)));
      cell.hidden = location === null;
      if (location !== null) {
        cell.style.left = `${(100 * (location % data.columns)) / data.columns}%`;
        cell.style.top = `${(100 * Math.floor(location / data.columns)) / data.rows}%`;
      }
      const [low, high] = [Math.min(...scores), Math.max(...scores)];
      const room = 0.08 * (high - low) + 1e-3;
      const edge = low + (high - low) * 0.02;
      const kept = (l) => (Number.isFinite(tau) ? 1 / (1 + Math.exp(-tau - l)) : 1);
      const format = (v) => signed(v.toFixed(high - low < 1 ? 2 : 1));
      selection.draw(
        `Fraction kept over score; the threshold is at score ${(-tau).toFixed(2)}.`, [low - room, high + room], [0, 1],
        [[edge, format(low)], [(low + high) / 2, format((low + high) / 2)], [high - (high - low) * 0.02, format(high)]],
        [[0, '0'], [0.5, '0.5'], [1, '1']],
        (x, y) => {
          const curve = Array.from({ length: 81 }, (_, k) => low - room + (k / 80) * (high - low + 2 * room));
          const inside = -tau > low - room && -tau < high + room;
          return [
            ...(inside ? [tag('svg:line', { class: 'threshold', x1: x(-tau), x2: x(-tau), y1: y(0), y2: y(1) }),
              tag('svg:text', { x: x(-tau) + (x(-tau) > W - 60 ? -4 : 4), y: y(1) + 9, class: 'named', 'text-anchor': x(-tau) > W - 60 ? 'end' : 'start' }, '−τ')] : []),
            tag('svg:polyline', { class: 'curve', points: curve.map((l) => `${x(l).toFixed(1)},${y(kept(l)).toFixed(1)}`).join(' ') }),
            ...scores.map((l, j) => tag('svg:circle', { class: j === location ? 'dot chosen' : 'dot', cx: x(l), cy: y(kept(l)), r: j === location ? 4.5 : 3 })),
          ];
        });
      const most = Math.max(4, Math.ceil(Math.max(...relative)));
      sorted.draw(
        `Weights in units of the mean weight, largest first: ${relative[order[0]].toFixed(1)} at most.`, [0, n], [0, most],
        [[0.5, '1'], [n / 2, String(n / 2)], [n - 1, String(n)]], [[0, '0'], ...(most > 8 ? [] : [[1, '1×']]), [most, `${most}×`]],
        (x, y) => [...bars(relative, order, location)(x, y), tag('svg:line', { class: 'mean', x1: LEFT, x2: W - 8, y1: y(1), y2: y(1) }),
          tag('svg:text', { x: W - 10, y: y(1) - 4, class: 'named', 'text-anchor': 'end' }, 'GAP: 1× everywhere')]);
      const peak = Math.max(...attributes);
      const limit = [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 1].find((v) => v >= peak - 1e-12);
      shares.draw(
        `Attributes of ${attributes.length} prototypes; the largest is ${percent(peak)}.`, [0, attributes.length], [0, limit],
        [[0.5, '0'], [attributes.length / 2, String(attributes.length / 2)], [attributes.length - 0.5, String(attributes.length - 1)]],
        [[0, '0'], ...[limit / 2, limit].map((v) => [v, `${Number((100 * v).toFixed(1))}%`])],
        bars(attributes, [...attributes.keys()], null));
    }

    for (const one of [mu, eps]) one.input.addEventListener('input', draw);
    frame.addEventListener('pointermove', (event) => {
      const box = frame.getBoundingClientRect();
      const at = (v, count) => Math.min(count - 1, Math.max(0, Math.floor(v * count)));
      location = at((event.clientY - box.top) / box.height, data.rows) * data.columns + at((event.clientX - box.left) / box.width, data.columns);
      draw();
    });
    frame.addEventListener('pointerleave', () => { location = null; draw(); });
    draw();
  }

  /** Paint weights, interpolated between locations, so colors stay on the scale. */
  function paint(canvas, values, { rows, columns }) {
    const pixels = new ImageData(canvas.width, canvas.height);
    const at = (r, c) => values[Math.min(Math.max(r, 0), rows - 1) * columns + Math.min(Math.max(c, 0), columns - 1)];
    for (let y = 0; y < canvas.height; y++) {
      for (let x = 0; x < canvas.width; x++) {
        const [v, u] = [((y + 0.5) / canvas.height) * rows - 0.5, ((x + 0.5) / canvas.width) * columns - 0.5];
        const [r, c] = [Math.floor(v), Math.floor(u)];
        const along = (row) => at(row, c) + (u - c) * (at(row, c + 1) - at(row, c));
        pixels.data.set([...heat(along(r) + (v - r) * (along(r + 1) - along(r))), 255], 4 * (y * canvas.width + x));
      }
    }
    canvas.getContext('2d').putImageData(pixels, 0, 0);
  }

  const all = () => document.querySelectorAll('.gsp-figure').forEach(start);
  if (document.readyState === 'loading') addEventListener('DOMContentLoaded', all); else all();
})();
