// Images of the index as buttons in a list.

import { thumbnail } from './api.js';
import { framed, paint } from './heat.js';

/** Make a list item with a picture, a name and a number. */
export function tile({ id, name, number, label, press }) {
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
  item.append(button);
  const one = {
    item, button, frame, id,
    tell(name, number, label) {
      named.textContent = name;
      named.title = name;
      counted.textContent = number;
      button.setAttribute('aria-label', label);
    },
    heat: (map) => paint(frame, map),
  };
  one.tell(name, number, label);
  return one;
}

/** A list of tiles that keeps those it has already, and with them the focus. */
export class Tiles {
  constructor(list) {
    this.list = list;
    this.tiles = new Map();
  }

  show(contents) {
    const next = new Map();
    for (const content of contents) {
      const known = this.tiles.get(content.id);
      if (known) known.tell(content.name, content.number, content.label);
      next.set(content.id, known ?? tile(content));
    }
    this.tiles = next;
    const focused = document.activeElement;
    this.list.replaceChildren(...[...next.values()].map((one) => one.item));
    if (this.list.contains(focused)) focused.focus({ preventScroll: true });
  }
}
