// Two painters with one interface: onto a canvas, and into the text of an SVG file.

export const FONT = "12px system-ui, sans-serif";

export class CanvasPainter {
  constructor(canvas, width, height, ratio = window.devicePixelRatio || 1) {
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.context = canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.font = FONT;
  }

  fill(x, y, width, height, colour) {
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  line(points, colour, width = 1, dashes = []) {
    const c = this.context;
    c.beginPath();
    for (let i = 0; i < points.length; i++) c.lineTo(points[i][0], points[i][1]);
    Object.assign(c, { strokeStyle: colour, lineWidth: width, lineJoin: "round" });
    c.setLineDash(dashes);
    c.stroke();
  }

  area(points, colour, opacity) {
    const c = this.context;
    c.beginPath();
    for (const [x, y] of points) c.lineTo(x, y);
    c.closePath();
    Object.assign(c, { fillStyle: colour, globalAlpha: opacity });
    c.fill();
    c.globalAlpha = 1;
  }

  text(text, x, y, colour, align = "left", baseline = "middle") {
    Object.assign(this.context, { fillStyle: colour, textAlign: align, textBaseline: baseline });
    this.context.fillText(text, x, y);
  }

  clipped(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }
}

const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const ANCHORS = { left: "start", center: "middle", right: "end" };
const BASELINES = { top: "hanging", middle: "central", bottom: "text-after-edge" };

export class SvgPainter {
  constructor(width, height) {
    this.size = [width, height];
    this.parts = [];
    this.clips = 0;
  }

  fill(x, y, width, height, colour) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${escape(colour)}"/>`);
  }

  line(points, colour, width = 1, dashes = []) {
    this.parts.push(`<path d="${path(points)}" fill="none" stroke="${escape(colour)}" stroke-width="${width}" `
      + `stroke-linejoin="round" stroke-dasharray="${dashes.join(" ")}"/>`);
  }

  area(points, colour, opacity) {
    this.parts.push(`<path d="${path(points)}Z" fill="${escape(colour)}" fill-opacity="${opacity}"/>`);
  }

  text(text, x, y, colour, align = "left", baseline = "middle") {
    this.parts.push(`<text x="${x}" y="${y}" fill="${escape(colour)}" text-anchor="${ANCHORS[align]}" `
      + `dominant-baseline="${BASELINES[baseline]}">${escape(text)}</text>`);
  }

  clipped(x, y, width, height, draw) {
    const id = `clip-${++this.clips}`;
    this.parts.push(`<clipPath id="${id}"><rect x="${x}" y="${y}" width="${width}" height="${height}"/></clipPath>`,
      `<g clip-path="url(#${id})">`);
    draw();
    this.parts.push("</g>");
  }

  get file() {
    const [width, height] = this.size;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" `
      + `viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12">`
      + `${this.parts.join("")}</svg>`;
  }
}
