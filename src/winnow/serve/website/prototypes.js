// Prototypes: the largest attributes of the query first, and the images that match each best.

import { get, thumbnail } from './api.js';
import { framed } from './heat.js';
import { Tiles, tile } from './tiles.js';

const FEW = 12;
const $ = (id) => document.getElementById(id);
const percent = (fraction) => `${(100 * fraction).toFixed(fraction < 0.0995 ? 1 : 0)}%`;

export function start({ searchWith, complain }) {
  let known = []; // { prototype, share, best }
  let attributes = null; // of the query
  let all = false;
  let progress = '';
  const tiles = new Map();
  const matched = new Tiles($('matched'));

  function draw() {
    $('prototypes-about').textContent = 'The pooling keeps the features nearest to its prototypes. Percentages: fraction of the '
      + `weight that matches each prototype, ${attributes ? 'in the query' : 'on average'}.${progress}`;
    const value = (one) => (attributes ? attributes[one.prototype] : one.share);
    const order = [...known].sort((a, b) => value(b) - value(a));
    const most = Math.max(1e-9, ...order.map(value));
    const shown = all ? order : order.slice(0, FEW);
    for (const one of shown) {
      if (!tiles.has(one.prototype)) tiles.set(one.prototype, make(one.prototype));
      const entry = tiles.get(one.prototype);
      const number = one.prototype + 1;
      const whose = attributes ? 'of the weight in the query' : 'of the weight on average';
      entry.update(`Prototype ${number}`, percent(value(one)), `Prototype ${number}: ${percent(value(one))} ${whose}. Show the images that match it best.`);
      entry.bar.style.width = `${(100 * value(one)) / most}%`;
      if (one.best.length && entry.id !== one.best[0]) {
        entry.id = one.best[0];
        framed(entry.picture, thumbnail(entry.id), '');
      }
    }
    const focused = document.activeElement;
    $('prototype-list').replaceChildren(...shown.map((one) => tiles.get(one.prototype).item));
    if ($('prototype-list').contains(focused)) focused.focus({ preventScroll: true });
    $('more').hidden = known.length <= FEW;
    $('more').textContent = all ? 'Show fewer' : `Show all ${known.length}`;
    $('more').setAttribute('aria-expanded', String(all));
  }

  function make(prototype) {
    const one = tile({ id: null, name: '', number: '', label: '', press: () => open(prototype).catch(complain) });
    one.picture = one.item.querySelector('.picture');
    const share = document.createElement('div');
    share.className = 'share';
    one.bar = document.createElement('i');
    share.append(one.bar);
    one.button.append(share);
    return one;
  }

  async function open(prototype) {
    const answer = await get(`/api/prototypes/${prototype}`, { k: 18 });
    $('matches-title').textContent = `Images that match prototype ${prototype + 1} best`;
    $('matches-about').textContent = `Its mean attribute is ${percent(answer.share)} over `
      + `${answer.looked_at.toLocaleString('en')} images. The heat maps show its weight at each location.`;
    matched.tiles.clear();
    matched.show(answer.images.map((one) => ({
      id: one.id,
      name: one.label ?? one.name,
      number: percent(one.attribute),
      label: `${one.label ?? one.name}, ${one.name}: ${percent(one.attribute)} of the weight belongs to this prototype. Search with it.`,
      press: () => searchWith(one),
    })));
    for (const one of answer.images) matched.tiles.get(one.id)?.heat(one.heat_map);
    if (!$('matches').open) $('matches').showModal();
  }

  async function refresh() {
    const answer = await get('/api/prototypes');
    known = answer.prototypes;
    $('prototypes').hidden = false;
    const done = answer.looked_at >= answer.of;
    progress = done ? '' : ` Scanned ${answer.looked_at} of ${answer.of} images.`;
    draw();
    if (!done) setTimeout(() => refresh().catch(complain), 1000);
  }

  $('more').addEventListener('click', () => {
    all = !all;
    draw();
  });
  refresh().catch(complain);
  return { mark(values) { attributes = values; draw(); } };
}
