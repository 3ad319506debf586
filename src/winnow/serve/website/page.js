// The page: what is asked for, and what is shown of the answers.

import { Problem, get, send } from './api.js';
import { framed, inWords, paint } from './heat.js';
import { start as startPrototypes } from './prototypes.js';
import { Tiles } from './tiles.js';
import { thumbnail } from './api.js';

const $ = (id) => document.getElementById(id);
const found = new Tiles($('found'));
const uploads = new Map(); // files by the key the service knows them by, to be sent again when it has forgotten them
let about = null;
let query = null; // { file, key } or { id }
let frame = null; // of the query's picture
let prototypes = null;

const named = (image) => image.label ?? image.name;
const chosen = () => {
  if (!about?.adjustable) return {};
  const [mu, eps] = ['mu', 'eps'].map((name) => Number($(name).value));
  const own = own_values();
  return mu === own.mu && eps === own.eps ? {} : { mu, eps };
};
// The sliders' steps are coarser than the model's own numbers can be.
const own_values = () => ({ mu: Number($('mu').dataset.own), eps: Number($('eps').dataset.own) });

function say(text) { $('status').textContent = text; }
function complain(error) {
  if (error?.name === 'AbortError') return;
  if (error && !(error instanceof Problem)) console.error(error);
  $('error').textContent = error ? error.message : '';
  if (error) $('error').scrollIntoView({ block: 'nearest' }); // on a phone it is below the query
}

// One search at a time, and the newest wins: sliders move faster than answers come.
let running = null;
async function search({ quiet = false } = {}) {
  if (!query) return;
  running?.abort();
  const mine = running = new AbortController();
  document.body.classList.add('busy');
  complain(null);
  if (!quiet) say('Searching …');
  try {
    const settings = { k: $('k').value, ...chosen() };
    const result = await ask(query, settings, mine.signal);
    show(result);
    const ids = result.neighbours.map((one) => one.id);
    if (ids.length && result.query.heat_map) {
      const maps = await get('/api/weights', { id: ids, ...chosen() }, mine.signal);
      for (const { id, heat_map } of maps) found.tiles.get(id)?.heat(heat_map);
    }
  } catch (error) {
    if (mine === running) {
      say('');
      complain(error);
    }
  } finally {
    if (mine === running) document.body.classList.remove('busy');
  }
}

async function ask(query, settings, signal) {
  if (query.id !== undefined) return get(`/api/similar/${query.id}`, settings, signal);
  if (query.key) {
    try {
      return await get(`/api/search/${query.key}`, settings, signal);
    } catch (error) {
      if (error.status !== 404) throw error; // forgotten: it is sent again
    }
  }
  const result = await send('/api/search', settings, query.file, signal);
  query.key = result.query.key;
  uploads.set(query.key, query.file);
  history.replaceState({ key: query.key }, '');
  return result;
}

function show(result) {
  const { neighbours, query: seen } = result;
  if (seen.image) $('query-name').textContent = `${named(seen.image)} (${seen.image.name})`;
  if (frame) paint(frame, seen.heat_map);
  $('spread').textContent = seen.heat_map ? inWords(seen.heat_map) : '';
  $('found-title').textContent = 'Nearest images';
  found.show(neighbours.map((one) => ({
    id: one.id,
    name: named(one),
    number: one.distance.toFixed(3),
    label: `${named(one)}, ${one.name}, distance ${one.distance.toFixed(3)}. Search with it.`,
    press: () => searchWith(one),
  })));
  const first = neighbours[0];
  say(first ? `${neighbours.length} images; the nearest is ${named(first)} at distance ${first.distance.toFixed(3)}.`
    : 'The index has no other image.');
  prototypes?.mark(seen.attributes);
}

function display(source, alt) {
  $('shown').hidden = false;
  $('query-name').hidden = false;
  $('query-name').textContent = alt;
  $('spread').textContent = '';
  frame = framed($('shown'), source, `Query: ${alt}`);
}

function searchWith(image, { remember = true } = {}) {
  query = { id: image.id };
  if (remember) history.pushState({ image: { id: image.id, name: image.name, label: image.label } }, '');
  display(thumbnail(image.id), named(image));
  $('taste').close();
  if (matchMedia('(max-width: 56rem)').matches) $('query').scrollIntoView();
  search();
}

let shownUpload = null;
function upload(file, { key = null } = {}) {
  if (about && file.size > about.upload_bytes) {
    complain(new Problem(413, `That file is larger than ${Math.round(about.upload_bytes / 1e6)} MB.`));
    return;
  }
  if (!key) history.pushState({}, '');
  query = { file, key };
  if (shownUpload) URL.revokeObjectURL(shownUpload);
  shownUpload = URL.createObjectURL(file);
  display(shownUpload, file.name || 'pasted image');
  search();
}

function offer(file) {
  if (file) upload(file);
}

function showStart() {
  query = null;
  running?.abort();
  $('shown').hidden = $('query-name').hidden = true;
  $('spread').textContent = '';
  $('found-title').textContent = about.examples.length ? 'Start with one of these' : 'The index is empty';
  say('');
  found.show(about.examples.map((one) => ({
    id: one.id, name: named(one), number: '', label: `${named(one)}, ${one.name}. Search with it.`,
    press: () => searchWith(one),
  })));
  prototypes?.mark(null);
}

function setSliders(values) {
  for (const name of ['mu', 'eps']) $(name).value = values[name];
  tellSliders();
}
function tellSliders() {
  $('mu-value').textContent = `${Math.round(100 * $('mu').value)} %`;
  $('eps-value').textContent = $('eps').value;
  $('mu').setAttribute('aria-valuetext', `${Math.round(100 * $('mu').value)} per cent`);
  $('reset').disabled = !Object.keys(chosen()).length;
}

async function begin() {
  about = await get('/api/about');
  $('about').textContent = `${about.entries.toLocaleString('en')} images, pooled by ${about.pooling.toUpperCase()}`;
  $('file').accept = about.media_types.join(',');
  $('selection').hidden = !about.adjustable;
  if (about.adjustable) {
    $('mu').max = about.largest_mu;
    $('eps').max = Math.max(40, Math.ceil(4 * about.eps));
    setSliders(about);
    for (const name of ['mu', 'eps']) $(name).dataset.own = $(name).value;
    tellSliders();
  }
  if (about.prototypes) prototypes = startPrototypes({ searchWith, complain });
  if (!query) showStart(); // somebody may have been quicker
}

document.addEventListener('dragover', (event) => {
  event.preventDefault();
  document.body.classList.add('dragging');
});
document.addEventListener('dragleave', (event) => {
  if (!event.relatedTarget) document.body.classList.remove('dragging');
});
document.addEventListener('drop', (event) => {
  event.preventDefault();
  document.body.classList.remove('dragging');
  offer(event.dataTransfer.files[0]);
});
document.addEventListener('paste', (event) => offer(event.clipboardData.files[0]));
$('file').addEventListener('change', () => {
  offer($('file').files[0]);
  $('file').value = ''; // so that the same file can be chosen again
});
for (const name of ['mu', 'eps']) {
  $(name).addEventListener('input', () => {
    tellSliders();
    search({ quiet: true });
  });
}
$('reset').addEventListener('click', () => {
  setSliders(own_values());
  search({ quiet: true });
});
$('k').addEventListener('change', () => search());
$('heat').addEventListener('change', () => document.body.classList.toggle('heated', $('heat').checked));
document.body.classList.toggle('heated', $('heat').checked);
$('settings').addEventListener('submit', (event) => event.preventDefault());
addEventListener('popstate', ({ state }) => {
  if (state?.image) searchWith(state.image, { remember: false });
  else if (state?.key && uploads.has(state.key)) upload(uploads.get(state.key), { key: state.key });
  else showStart();
});

begin().catch(complain);
