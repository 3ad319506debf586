// Requests to the service: access token, retries when it is busy, thumbnails.

const KEY = 'winnow-token';
const fromAddress = new URLSearchParams(location.hash.slice(1)).get('token');
if (fromAddress) {
  // The fragment of an address is never sent. It is removed, because the address bar is visible.
  sessionStorage.setItem(KEY, fromAddress);
  history.replaceState(null, '', location.pathname + location.search);
}
const token = () => sessionStorage.getItem(KEY);

/** A rejected or failed request. */
export class Problem extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function answer(path, options = {}) {
  for (let attempt = 0; ; attempt++) {
    const used = token();
    const headers = used ? { Authorization: `Bearer ${encodeToken(used)}` } : {};
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new Problem(0, 'The service cannot be reached.');
    }
    if (response.ok) return response;
    if (response.status === 429 && attempt < 4) {
      await pause(1000 * (Number(response.headers.get('Retry-After')) || 1));
      continue;
    }
    if (response.status === 401) {
      if (token() === used) await askToken(); // otherwise one was entered while this request was on its way
      continue;
    }
    const failure = await response.json().catch(() => ({}));
    throw new Problem(response.status, failure.detail || `The service answered ${response.status}.`);
  }
}

// Header values are bytes; letters beyond Latin-1 are sent as the bytes of their UTF-8.
const encodeToken = (text) => String.fromCharCode(...new TextEncoder().encode(text));

let asking = null;
function askToken() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById('ask');
    const input = document.getElementById('token');
    dialog.showModal();
    dialog.addEventListener('close', () => {
      sessionStorage.setItem(KEY, input.value);
      input.value = '';
      asking = null;
      resolve();
    }, { once: true });
  });
  return asking;
}

/** Return an address with its parameters, without those that are null. */
export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (one !== null && one !== undefined) query.append(name, one);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export const get = async (path, parameters, signal) => (await answer(address(path, parameters), { signal })).json();

export const send = async (path, parameters, body, signal) =>
  (await answer(address(path, parameters), { method: 'POST', body, signal })).json();

const blobs = new Map();

/** Return an address for an <img>. With a token, which <img> cannot send, it is the address of a blob. */
export async function thumbnail(id) {
  const path = `/api/thumbnail/${id}`;
  if (!token()) return path;
  if (!blobs.has(id)) {
    if (blobs.size >= 400) {
      const [oldest, url] = blobs.entries().next().value;
      blobs.delete(oldest);
      url.then(URL.revokeObjectURL);
    }
    blobs.set(id, answer(path).then((response) => response.blob()).then(URL.createObjectURL));
  }
  return blobs.get(id);
}
