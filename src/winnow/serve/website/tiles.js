// Images of the index as buttons in a list.

import { thumbnail } from './api.js';
import { framed, paint } from './heat.js';

/** Return a name as nodes that may break after its underscores, hyphens, slashes, and periods. */
export function breakable(name) {
  const parts = name.split(/(?<=[-_/.])/);
  return parts.flatMap((part, i) => (i ? [document.createElement('wbr'), part] : [part]));
}

/** Make a list item with a picture, a name, and a number. */
export function tile({ id, name, number, label, press, hover }) {
  const item = document.createElement('li');
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'tile';
  const picture = document.createElement('div');
  picture.className = 'picture';
  const frame = framed(picture, id === null ? '' : thumbnail(id), '');
  const text = document.createElement('div');
  text.className = 'text';
  const [named, counted] = ['name', 'number'].map((css) => {
    const part = document.createElement('span');
    part.className = css;
    text.append(part);
    return part;
  });
  button.append(picture, text);
  button.addEventListener('click', press);
  if (hover) for (const kind of ['pointerenter', 'focus']) button.addEventListener(kind, () => hover(id));
  item.append(button);
  const one = {
    item, button, frame, id,
    update(name, number, label) {
      named.replaceChildren(...breakable(name));
      counted.textContent = number;
      button.setAttribute('aria-label', label);
    },
    heat: (map) => paint(frame, map),
  };
  one.update(name, number, label);
  return one;
}

/** A list of tiles that reuses existing tiles, and with them the focus. */
export class Tiles {
  constructor(list, { hover = null } = {}) {
    this.list = list;
    this.hover = hover;
    this.tiles = new Map();
  }

  show(contents) {
    const next = new Map();
    for (const content of contents) {
      const known = this.tiles.get(content.id);
      if (known) known.update(content.name, content.number, content.label);
      next.set(content.id, known ?? tile({ ...content, hover: this.hover }));
    }
    this.tiles = next;
    const focused = document.activeElement;
    this.list.replaceChildren(...[...next.values()].map((one) => one.item));
    if (this.list.contains(focused)) focused.focus({ preventScroll: true });
  }
}
