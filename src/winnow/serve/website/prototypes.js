// Prototypes: those of the query first, and what each likes best.

import { get, thumbnail } from './api.js';
import { framed } from './heat.js';
import { Tiles, tile } from './tiles.js';

const FEW = 12;
const $ = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

export function start({ searchWith, complain }) {
  let known = []; // { prototype, share, best }
  let attributes = null; // of the query
  let all = false;
  const tiles = new Map();
  const liked = new Tiles($('liked'));

  function draw() {
    const value = (one) => (attributes ? attributes[one.prototype] : one.share);
    const order = [...known].sort((a, b) => value(b) - value(a));
    const most = Math.max(1e-9, ...order.map(value));
    const shown = all ? order : order.slice(0, FEW);
    for (const one of shown) {
      if (!tiles.has(one.prototype)) tiles.set(one.prototype, make(one.prototype));
      const entry = tiles.get(one.prototype);
      const number = one.prototype + 1;
      const whose = attributes ? 'of what was kept of the query' : 'on average';
      entry.tell(`No. ${number}`, percent(value(one)), `Prototype ${number}: ${percent(value(one))} ${whose}. Show what it likes best.`);
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
    const taste = await get(`/api/prototypes/${prototype}`, { k: 18 });
    $('taste-title').textContent = `What prototype ${prototype + 1} likes best`;
    $('taste-about').textContent = `It takes ${percent(taste.share)} of what is kept, on average over `
      + `${taste.looked_at.toLocaleString('en')} images. The heat maps show what it takes of each place.`;
    liked.tiles.clear();
    liked.show(taste.images.map((one) => ({
      id: one.id,
      name: one.label ?? one.name,
      number: percent(one.attribute),
      label: `${one.label ?? one.name}, ${one.name}: ${percent(one.attribute)} of what is kept goes to this prototype. Search with it.`,
      press: () => searchWith(one),
    })));
    for (const one of taste.images) liked.tiles.get(one.id)?.heat(one.heat_map);
    if (!$('taste').open) $('taste').showModal();
  }

  async function refresh() {
    const answer = await get('/api/prototypes');
    known = answer.prototypes;
    $('prototypes').hidden = false;
    const done = answer.looked_at >= answer.of;
    $('prototypes-about').textContent = 'Each attracts the places that resemble it. Press one to see what it likes best'
      + (done ? '.' : `; ${answer.looked_at} of ${answer.of} images looked at so far.`);
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
