// Pictures of a console on a canvas: messages of a player unpacked, palette indices as exact colours, at 60 Hz.

import { notice } from "./dom.js";

/** Unpack a message (`wire.py`): its head, with the arrays in `head.data` by name. */
async function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  head.data = {};
  if (!head.arrays.length) return head;
  const body = buffer.byteLength > 4 + length ? await inflated(buffer.slice(4 + length)) : new Uint8Array();
  let start = 0;
  for (const [name, shape] of head.arrays) {
    const size = shape.reduce((product, n) => product * n, 1);
    head.data[name] = { shape, bytes: body.subarray(start, start + size) };
    start += size;
  }
  return head;
}

/**
 * Give a socket's messages to `take`, one after the other, because unpacking is asynchronous. An error in one is
 * reported, and the next is taken.
 */
export function takeMessages(socket, take) {
  let before = Promise.resolve();
  socket.onmessage = (event) => {
    before = before.then(async () => take(await unpack(event.data))).catch((error) => {
      console.error(error);
      notice(`a message of the server cannot be shown: ${error.message}`);
    });
  };
}

async function inflated(deflated) {
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Split pictures `[k, height, width]` that are differences to the one before. */
export function pictures({ shape: [count, height, width], bytes }, areDifferences) {
  const size = height * width;
  const found = [];
  for (let i = 0; i < count; i++) {
    const picture = bytes.slice(i * size, (i + 1) * size);
    if (i && areDifferences) for (let p = 0; p < size; p++) picture[p] ^= found[i - 1].indices[p];
    found.push({ height, width, indices: picture });
  }
  return found;
}

/** 256 colours as little-endian RGBA words, from `[256, 3]` bytes. */
export function paletteOf(bytes) {
  const words = new Uint32Array(256);
  for (let i = 0; i < 256; i++) words[i] = 0xff000000 | (bytes[3 * i + 2] << 16) | (bytes[3 * i + 1] << 8) | bytes[3 * i];
  return words;
}

export const GREYS = Uint32Array.from({ length: 256 }, (_, i) => 0xff000000 | (i << 16) | (i << 8) | i);
/** Transparent to cyan: saliency over a picture. */
export const HEAT = Uint32Array.from({ length: 256 }, (_, i) => (Math.round(i * 0.8) << 24) | 0xffff20);

function paint(canvas, height, width, colourOf) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const words = new Uint32Array(image.data.buffer);
  for (let p = 0; p < words.length; p++) words[p] = colourOf(p);
  context.putImageData(image, 0, 0);
}

export function draw(canvas, { height, width, indices }, palette) {
  paint(canvas, height, width, (p) => palette[indices[p]]);
}

/** Draw red, green and blue bytes, `[height, width, 3]`. */
export function drawColours(canvas, { height, width, bytes }) {
  paint(canvas, height, width, (p) => 0xff000000 | (bytes[3 * p + 2] << 16) | (bytes[3 * p + 1] << 8) | bytes[3 * p]);
}

const FRAME_MS = 1000 / 60;
const MOST_QUEUED = 16;

/** Shows queued pictures at the console's rate; a message brings the frames of a step at once. */
export class Projector {
  constructor(canvas) {
    this.canvas = canvas;
    this.queue = [];
    this.palette = GREYS;
    this.speed = 1;
    this.shown = 0;
  }

  add(frames) {
    this.queue.push(...frames);
    if (this.queue.length > MOST_QUEUED) this.queue.splice(0, this.queue.length - MOST_QUEUED / 2);
    this.last ??= performance.now();
    this.request ??= requestAnimationFrame((now) => this.#show(now));
  }

  #show(now) {
    this.request = undefined;
    const due = Math.floor(((now - this.last) / FRAME_MS) * this.speed);
    if (due > 0 && this.queue.length) {
      this.last = now - ((now - this.last) % (FRAME_MS / this.speed));
      const taken = this.queue.splice(0, Math.min(due, this.queue.length));
      draw(this.canvas, taken[taken.length - 1], this.palette);
      this.shown += 1;
    }
    if (this.queue.length) this.request = requestAnimationFrame((later) => this.#show(later));
    else this.last = undefined;
  }

  close() {
    cancelAnimationFrame(this.request);
    this.queue = [];
  }
}
