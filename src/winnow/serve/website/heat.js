// Heat maps: a small canvas, stretched over the crop that enters the network.

const FINE = 6; // pixels per location
const FULL = 4; // weight / mean weight of the brightest color, as in reports
// The inferno colors of matplotlib, from 0 to FULL.
const STOPS = [
  [0, 0, 4], [17, 10, 48], [50, 10, 94], [87, 16, 110], [120, 28, 109], [154, 40, 101], [188, 55, 84],
  [216, 76, 62], [237, 105, 37], [249, 142, 9], [251, 182, 26], [244, 223, 83], [252, 255, 164],
];

export function color(relative) {
  const place = Math.min(Math.max(relative / FULL, 0), 1) * (STOPS.length - 1);
  const below = Math.min(Math.floor(place), STOPS.length - 2);
  const fraction = place - below;
  return STOPS[below].map((part, i) => Math.round(part + fraction * (STOPS[below + 1][i] - part)));
}

/** Return the weight interpolated between locations: colors of a blurred image would leave the scale. */
function interpolate({ rows, columns, values }, x, y) {
  const [left, top] = [Math.floor(x), Math.floor(y)];
  const at = (column, row) =>
    values[Math.min(Math.max(row, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1)];
  const along = (row) => at(left, row) + (x - left) * (at(left + 1, row) - at(left, row));
  return along(top) + (y - top) * (along(top + 1) - along(top));
}

/** Paint a heat map over the picture in a frame; null removes it. */
export function paint(frame, map) {
  const canvas = frame.querySelector('canvas');
  frame.classList.toggle('mapped', Boolean(map));
  if (!map) return;
  const [width, height] = [canvas.width, canvas.height] = [map.columns * FINE, map.rows * FINE];
  for (const side of ['left', 'top', 'width', 'height']) canvas.style[side] = `${100 * map.box[side]}%`;
  const pixels = new ImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = interpolate(map, (x + 0.5) / FINE - 0.5, (y + 0.5) / FINE - 0.5);
      pixels.data.set([...color(value), 255], 4 * (y * width + x));
    }
  }
  canvas.getContext('2d').putImageData(pixels, 0, 0);
}

/** Describe how concentrated the weight is. */
export function describeConcentration(map) {
  if (map.values.every((value) => Math.abs(value - 1) < 0.01)) return 'All locations have the same weight.';
  const sorted = [...map.values].sort((a, b) => b - a);
  let sum = 0;
  const count = sorted.findIndex((value) => (sum += value) >= sorted.length / 2) + 1;
  return `${count} of ${sorted.length} locations hold half of the weight.`;
}

/** Make a picture with room for a heat map. */
export function framed(picture, source, alt) {
  const frame = document.createElement('div');
  frame.className = 'frame wide';
  const image = new Image();
  image.alt = alt;
  image.decoding = 'async';
  image.addEventListener('load', () => {
    frame.style.aspectRatio = `${image.naturalWidth} / ${image.naturalHeight}`;
    frame.className = frame.className.replace(/wide|tall/, image.naturalWidth < image.naturalHeight ? 'tall' : 'wide');
  });
  // An empty address would be drawn as a broken picture; a missing one is drawn as nothing.
  Promise.resolve(source).then((address) => { if (address) image.src = address; });
  const canvas = document.createElement('canvas');
  canvas.setAttribute('aria-hidden', 'true');
  frame.append(image, canvas);
  picture.replaceChildren(frame);
  return frame;
}
