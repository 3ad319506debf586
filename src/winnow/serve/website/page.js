// The page: reads the query and the settings from its address, searches, and shows the results.

import { Problem, get, send, thumbnail } from './api.js';
import { describeConcentration, framed, paint } from './heat.js';
import { start as startPrototypes } from './prototypes.js';
import { Tiles, breakable } from './tiles.js';

const $ = (id) => document.getElementById(id);
const SETTINGS = ['mu', 'eps'];
const found = new Tiles($('found'), { hover: (id) => loadHeatMaps([id]).catch(complain) });
const uploads = new Map(); // key of an upload to its file, which is sent again when the service no longer caches it
let about = null;
let query = null; // { id } of the index, or { file, key } of an upload
let frame = null; // of the query's picture
let prototypes = null;

const named = (image) => image.label ?? image.name;
// Steps of the sliders may be coarser than the values of the model, so defaults are read back from the sliders.
const defaults = () => Object.fromEntries(SETTINGS.map((name) => [name, Number($(name).dataset.default)]));
const selection = () => {
  if (!about?.adjustable) return {};
  const values = Object.fromEntries(SETTINGS.map((name) => [name, Number($(name).value)]));
  return SETTINGS.every((name) => values[name] === defaults()[name]) ? {} : values;
};

function report(text) { $('status').textContent = text; }
function complain(error) {
  if (error?.name === 'AbortError') return;
  if (error && !(error instanceof Problem)) console.error(error);
  $('error').textContent = error ? error.message : '';
  if (error) $('error').scrollIntoView({ block: 'nearest' });
}

// The address: ?image=ID or ?upload=KEY, with k, mu, eps, and heat where they differ from the defaults.
function address() {
  const parameters = new URLSearchParams();
  if (query?.id !== undefined) parameters.set('image', query.id);
  else if (query?.key) parameters.set('upload', query.key);
  if ($('k').value !== '20') parameters.set('k', $('k').value);
  for (const [name, value] of Object.entries(selection())) parameters.set(name, value);
  if ($('heat').checked) parameters.set('heat', 1);
  const text = parameters.toString();
  return text ? `?${text}` : location.pathname;
}
const keepAddress = () => history.replaceState(history.state, '', address());

function restore() {
  const parameters = new URLSearchParams(location.search);
  const k = parameters.get('k');
  $('k').value = [...$('k').options].some((one) => one.value === k) ? k : '20';
  setHeat(parameters.has('heat'));
  if (about.adjustable) {
    setSliders(Object.fromEntries(SETTINGS.map((name) => [name, parameters.get(name) ?? defaults()[name]])));
  }
  const [id, key] = [parameters.get('image'), parameters.get('upload')];
  if (/^\d{1,18}$/.test(id ?? '')) showIndexed({ id: Number(id) });
  else if (/^[0-9a-f]{64}$/.test(key ?? '')) showUpload({ key, file: uploads.get(key) });
  else showStart();
}

// One search at a time, and the newest wins: sliders move faster than responses arrive.
let running = null;
async function search({ quiet = false } = {}) {
  if (!query) return;
  running?.abort();
  const mine = running = new AbortController();
  document.body.classList.add('busy');
  complain(null);
  if (!quiet) report('Searching …');
  try {
    const result = await request(query, { k: $('k').value, ...selection() }, mine.signal);
    show(result);
    if ($('heat').checked) await loadHeatMaps([...found.tiles.keys()], mine.signal);
  } catch (error) {
    if (mine === running) {
      report('');
      complain(error);
    }
  } finally {
    if (mine === running) document.body.classList.remove('busy');
  }
}

async function request(query, settings, signal) {
  if (query.id !== undefined) return get(`/api/similar/${query.id}`, settings, signal);
  if (query.key) {
    try {
      return await get(`/api/search/${query.key}`, settings, signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      if (!query.file) throw new Problem(404, 'The service no longer caches this upload. Choose the image again.');
    }
  }
  const result = await send('/api/search', settings, query.file, signal);
  query.key = result.query.key;
  uploads.set(query.key, query.file);
  storePreview(query);
  keepAddress();
  return result;
}

function show(result) {
  const { neighbours, query: seen } = result;
  if (seen.image) {
    showName(named(seen.image), seen.image.label === null ? '' : seen.image.name);
    $('shown').querySelector('img').alt = `Query: ${named(seen.image)}`;
  }
  if (frame) paint(frame, seen.heat_map);
  $('concentration').textContent = seen.heat_map ? describeConcentration(seen.heat_map) : '';
  $('heat-label').hidden = !seen.heat_map;
  $('k-label').hidden = false;
  $('found-title').textContent = 'Nearest images';
  withHeatMaps.clear();
  found.show(neighbours.map((one) => ({
    id: one.id,
    name: named(one),
    number: one.distance.toFixed(3),
    label: `${named(one)}, ${one.name}, distance ${one.distance.toFixed(3)}. Search with it.`,
    press: () => searchWith(one),
  })));
  const first = neighbours[0];
  report(first ? `${neighbours.length} images, the nearest at distance ${first.distance.toFixed(3)}`
    : 'The index has no other image.');
  prototypes?.mark(seen.attributes);
}

// Heat maps are computed when they are shown: all with the check box on, one when the pointer or focus is on it.
const withHeatMaps = new Set(); // ids whose heat maps match the current settings
async function loadHeatMaps(ids, signal) {
  const missing = ids.filter((id) => found.tiles.has(id) && !withHeatMaps.has(id));
  if (!missing.length || $('heat-label').hidden) return;
  const used = JSON.stringify(selection());
  const maps = await get('/api/weights', { id: missing, ...selection() }, signal);
  if (used !== JSON.stringify(selection())) return; // the sliders moved meanwhile
  for (const { id, heat_map } of maps) {
    withHeatMaps.add(id);
    found.tiles.get(id)?.heat(heat_map);
  }
}

function setHeat(on) {
  $('heat').checked = on;
  for (const id of ['query', 'results']) $(id).classList.toggle('heated', on);
}

function showName(name, file = '') {
  $('query-name').hidden = !name;
  $('query-name').replaceChildren(...breakable(name));
  $('query-file').hidden = !file;
  $('query-file').replaceChildren(...breakable(file));
}

function display(source, name) {
  $('shown').hidden = !source;
  showName(name);
  $('concentration').textContent = '';
  frame = framed($('shown'), source, `Query: ${name}`);
}

function showIndexed(image) {
  query = { id: image.id };
  display(thumbnail(image.id), image.name ? named(image) : `image ${image.id}`);
  search();
}

function searchWith(image) {
  $('matches').close();
  query = { id: image.id };
  history.pushState(null, '', address());
  showIndexed(image);
  scrollTo({ top: 0 });
}

let shownUrl = null;
function showUpload({ file, key }) {
  query = { file, key };
  if (shownUrl) URL.revokeObjectURL(shownUrl);
  shownUrl = file ? URL.createObjectURL(file) : null;
  const stored = JSON.parse(sessionStorage.getItem(`winnow-upload-${key}`) ?? 'null');
  display(shownUrl ?? stored?.picture, (file ? file.name : stored?.name) || 'uploaded image');
  search();
}

function offer(file) {
  if (!file) return;
  if (about && file.size > about.upload_bytes) {
    complain(new Problem(413, `The file is larger than ${Math.round(about.upload_bytes / 1e6)} MB.`));
    return;
  }
  query = null;
  history.pushState(null, '', address()); // the key follows with the response
  showUpload({ file, key: null });
}

/** Store a small copy of an upload in this tab, which survives a reload. */
async function storePreview({ key, file }) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, 384 / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(scale * side)));
    canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const picture = canvas.toDataURL('image/jpeg', 0.85);
    sessionStorage.setItem(`winnow-upload-${key}`, JSON.stringify({ name: file.name, picture }));
  } catch { /* the storage is full, or the browser cannot decode the image: a reload shows no picture */ }
}

function showStart() {
  query = null;
  running?.abort();
  complain(null);
  $('shown').hidden = true;
  showName('');
  $('concentration').textContent = '';
  $('heat-label').hidden = $('k-label').hidden = true;
  $('found-title').textContent = about.examples.length ? 'Try one of these images' : 'The index is empty';
  report('');
  found.show(about.examples.map((one) => ({
    id: one.id, name: named(one), number: '', label: `${named(one)}, ${one.name}. Search with it.`,
    press: () => searchWith(one),
  })));
  for (const one of found.tiles.values()) one.heat(null);
  prototypes?.mark(null);
}

function setSliders(values) {
  for (const name of SETTINGS) $(name).value = values[name];
  showSliders();
}
function showSliders() {
  $('mu-value').textContent = `${Math.round(100 * $('mu').value)}%`;
  $('eps-value').textContent = $('eps').value;
  $('mu').setAttribute('aria-valuetext', `${Math.round(100 * $('mu').value)} percent`);
  $('reset').disabled = !Object.keys(selection()).length;
}
function changeSelection() {
  showSliders();
  keepAddress();
  search({ quiet: true });
}

async function begin() {
  about = await get('/api/about');
  $('about').textContent = `${about.entries.toLocaleString('en')} images, pooled by ${about.pooling.toUpperCase()}`;
  $('file').accept = about.media_types.join(',');
  $('selection').hidden = !about.adjustable;
  $('selection').open = matchMedia('(min-width: 56rem)').matches;
  if (about.adjustable) {
    $('mu').max = about.largest_mu;
    $('eps').max = Math.max(40, Math.ceil(4 * about.eps));
    for (const name of SETTINGS) {
      $(name).value = about[name];
      $(name).dataset.default = $(name).value;
    }
  }
  if (about.prototypes) prototypes = startPrototypes({ searchWith, complain });
  if (!query) restore();
  else if (about.adjustable) showSliders(); // an image was chosen before the response
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
  $('file').value = ''; // so the same file can be chosen again
});
for (const name of SETTINGS) $(name).addEventListener('input', changeSelection);
$('reset').addEventListener('click', () => {
  setSliders(defaults());
  changeSelection();
});
$('k').addEventListener('change', () => {
  keepAddress();
  search();
});
$('heat').addEventListener('change', () => {
  setHeat($('heat').checked);
  keepAddress();
  if ($('heat').checked) loadHeatMaps([...found.tiles.keys()]).catch(complain);
});
$('settings').addEventListener('submit', (event) => event.preventDefault());
addEventListener('popstate', () => { if (about) restore(); });

begin().catch(complain);
