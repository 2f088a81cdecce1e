"use strict";
const grid = JSON.parse(document.getElementById("grid").textContent);
const field = name => document.getElementById(name);
const names = Object.keys(grid.axes);
const SMALLEST = {batch: grid.axes.batch[0], link_bps: grid.axes.link_bps[0]};

// Sliders of link and batch are logarithmic: a position p stands for SMALLEST x 2^p.
function chosen(name) {
  const value = field(name).value;
  if (name === "model" || name === "gpu") return value;
  if (name === "nodes") return Number(value);
  const scaled = SMALLEST[name] * 2 ** Number(value);
  return name === "batch" ? Math.round(scaled) : scaled;
}

// The neighbours of a value on an axis, each with its weight.
function neighbours(axis, value) {
  const exact = axis.indexOf(value);
  if (exact >= 0) return [[exact, 1]];
  const above = axis.findIndex(one => one > value);
  if (above <= 0) return [[above < 0 ? axis.length - 1 : 0, 1]];
  const span = Math.log(axis[above] / axis[above - 1]);
  const weight = Math.log(value / axis[above - 1]) / span;
  return [[above - 1, 1 - weight], [above, weight]];
}

function predicted(setup) {
  let corners = [[0, 1]];
  for (const name of names) {
    const axis = grid.axes[name];
    corners = corners.flatMap(([at, weight]) => neighbours(axis, setup[name]).map(
      ([place, share]) => [at * axis.length + place, weight * share]));
  }
  const cells = corners.map(([at, weight]) => [grid.cells[at], weight]);
  if (cells.some(([cell]) => cell === null)) return null;
  const [rate, low, high, efficiency] = [0, 1, 2, 3].map(part => Math.exp(
    cells.reduce((sum, [cell, weight]) => sum + weight * Math.log(cell[part]), 0)));
  const [nearest] = cells.reduce((best, one) => one[1] > best[1] ? one : best);
  return {rate, low, high, efficiency, cause: grid.causes[nearest[4]], share: nearest[5]};
}

function figure(value) {
  const digits = {maximumSignificantDigits: 3};
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toLocaleString("en", digits);
}

function draw(setup) {
  const most = Number(field("nodes").max), width = 760, height = 300, left = 70, low = 30;
  const found = [];
  for (let nodes = 1; nodes <= most; nodes++) found.push(predicted({...setup, nodes}));
  const top = Math.max(...found.map(one => one.high), found[0].rate * most * 0.5);
  const x = nodes => left + (nodes - 1) / (most - 1) * (width - left - 10);
  const y = rate => height - low - Math.min(rate / top, 1) * (height - low - 10);
  const path = part => found.map((one, i) => `${x(i + 1)},${y(one[part])}`);
  field("band").setAttribute("points", [...path("low"), ...path("high").reverse()].join(" "));
  field("line").setAttribute("points", path("rate").join(" "));
  const end = Math.min(most, top / found[0].rate);
  field("linear").setAttribute("points",
    `${x(1)},${y(found[0].rate)} ${x(end)},${y(found[0].rate * end)}`);
  field("here").setAttribute("cx", x(setup.nodes));
  field("here").setAttribute("cy", y(found[setup.nodes - 1].rate));
  field("most").textContent = figure(top);
}

function show() {
  const setup = Object.fromEntries(names.map(name => [name, chosen(name)]));
  field("nodes-is").textContent = setup.nodes;
  field("batch-is").textContent = setup.batch;
  field("link_bps-is").textContent = `${figure(setup.link_bps / 1e9)} Gbit/s`;
  const found = predicted(setup);
  field("known").hidden = found === null;
  field("unknown").hidden = found !== null;
  if (found === null) return;
  const hours = grid.work.epochs * grid.work.dataset_size / 3600;
  field("rate").textContent = `${figure(found.rate)} images/s`;
  field("interval").textContent = `${figure(found.low)} to ${figure(found.high)} images/s`;
  field("efficiency").textContent = `${Math.round(found.efficiency * 100)} %`;
  field("hours").textContent = `${figure(hours / found.rate)} h, ` +
    `${figure(setup.nodes * hours / found.rate)} node-hours`;
  field("cause").textContent = found.share > 0.05 && found.cause
    ? `${found.cause}, ${Math.round(found.share * 100)} % of a step` : "compute";
  draw(setup);
}

for (const name of names) field(name).addEventListener("input", show);
show();
