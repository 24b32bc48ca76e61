'use strict'
const $ = id => document.getElementById(id)
const page = JSON.parse($('page').textContent)
const results = []  // {answer, picture, mask, canvas, legend, size}: one for each image, the latest first
const level = () => $('slider') ? Number($('slider').value) : 0
const colour = label => page.colours[label % page.colours.length]

function add(parent, tag, text = '', name = '') {
  const element = document.createElement(tag)
  element.textContent = text
  element.className = name
  parent.append(element)
  return element
}

// One image: a card with the picture, its result in words, and the JSON of the service.
async function predict(file) {
  const card = document.createElement('article')
  card.className = 'tile result'
  $('results').prepend(card)
  add(card, 'h3', file.name)
  const state = add(card, 'p', 'predicting …', 'muted')
  try {
    const begin = performance.now(), answer = await ask(file), took = Math.round(performance.now() - begin)
    const picture = await createImageBitmap(file).catch(() => null)
    state.textContent = picture ? `${picture.width} × ${picture.height} pixels, ${took} ms` : `${took} ms; this browser cannot show the image`
    await show(card, answer, picture)
    card.dataset.state = 'done'
  } catch (error) {
    state.textContent = error.message
    state.className = 'error'
    card.dataset.state = 'error'
  }
}

async function ask(file) {
  let response
  try {
    response = await fetch('predict', {method: 'POST', body: file, headers: {'Content-Type': file.type || 'image/*'}})
  } catch {
    throw new Error('the service does not answer; is `phalanx serve` still running?')
  }
  const answer = await response.json().catch(() => ({detail: `the service answers with status ${response.status}`}))
  if (!response.ok) throw new Error(answer.detail)
  return answer
}

async function show(card, answer, picture) {
  const result = {answer, picture, mask: await readMask(answer), size: picture}
  if (page.task === 'recognition') add(card, 'p', answer.text || '(nothing)', 'read')
  result.legend = add(card, 'p', '', 'legend chips')
  if (picture) result.canvas = add(add(card, 'div', '', 'drawing'), 'canvas')
  if (answer.structure) showTable(card, answer, picture)
  const details = add(card, 'details')
  add(details, 'summary', 'JSON')
  add(details, 'pre', toText(answer))
  results.unshift(result)
  draw(result)
}

// A class map is a PNG file in which the grey value of a pixel is its class.
async function readMask(answer) {
  if (!answer.class_map_png) return null
  const bytes = Uint8Array.from(atob(answer.class_map_png), letter => letter.charCodeAt(0))
  const options = {colorSpaceConversion: 'none', premultiplyAlpha: 'none'}
  const map = await createImageBitmap(new Blob([bytes], {type: 'image/png'}), options)
  const canvas = new OffscreenCanvas(map.width, map.height), pen = canvas.getContext('2d', {willReadFrequently: true})
  pen.drawImage(map, 0, 0)
  const pixels = pen.getImageData(0, 0, map.width, map.height), {data} = pixels
  const rgb = page.colours.map(code => [1, 3, 5].map(at => parseInt(code.slice(at, at + 2), 16)))
  for (let at = 0; at < data.length; at += 4) {
    const label = data[at]
    if (label >= page.classes.length || label === page.background) data[at + 3] = 0
    else [data[at], data[at + 1], data[at + 2]] = rgb[label]
  }
  pen.putImageData(pixels, 0, 0)
  return canvas
}

// Pictures fill the card up to twice their size; lines and labels keep their size in pixels of the screen.
function draw(result) {
  const {answer, picture, mask, canvas, legend} = result, objects = seen(answer)
  legend.replaceChildren(...words(answer, objects))
  if (!canvas) return
  const width = Math.min(canvas.parentElement.clientWidth, Math.max(picture.width, Math.min(2 * picture.width, 640)))
  const scale = width / picture.width, height = Math.round(picture.height * scale), ratio = devicePixelRatio
  canvas.width = width * ratio
  canvas.height = height * ratio
  canvas.style.width = `${width}px`
  const pen = canvas.getContext('2d')
  pen.scale(ratio, ratio)
  pen.drawImage(picture, 0, 0, width, height)
  if (mask) {
    pen.globalAlpha = level()
    pen.imageSmoothingEnabled = false
    pen.drawImage(mask, 0, 0, width, height)
    pen.globalAlpha = 1
  }
  const shapes = objects.map(one => ({...one, points: one.points.map(([x, y]) => [x * scale, y * scale])}))
  for (const one of [...shapes].reverse()) outline(pen, one)  // the most probable one in front
  const taken = []
  for (const one of shapes) if (one.label) write(pen, one, taken, width, height)
}

// Objects to draw: outlines in pixels of the image, with colours and labels, the most probable first.
function seen(answer) {
  const corners = ([x0, y0, x1, y1]) => [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]
  if (answer.structure) return (answer.boxes || []).map((box, at) => ({points: corners(box), colour: colour(at), label: `${at + 1}`}))
  const found = (answer.found || []).filter(one => one.score >= level()).sort((a, b) => b.score - a.score)
  if (page.task === 'text_detection') return found.map(one => ({points: one.points, colour: '#ff285a', label: ''}))
  return found.map(one => (
    {points: corners(one.box), colour: colour(one.label), label: `${one.name} ${one.score.toFixed(2)}`, name: one.name}))
}

function outline(pen, {points, colour}) {
  pen.beginPath()
  points.forEach(([x, y], at) => at ? pen.lineTo(x, y) : pen.moveTo(x, y))
  pen.closePath()
  pen.lineWidth = 2
  pen.strokeStyle = colour
  pen.stroke()
}

// A label above its box, inside it, or below, where it covers no other label.
function write(pen, {points, colour, label}, taken, width, height) {
  pen.font = '600 12px system-ui, sans-serif'
  pen.textBaseline = 'middle'
  const w = Math.ceil(pen.measureText(label).width) + 8, h = 17
  const [xs, ys] = [points.map(point => point[0]), points.map(point => point[1])]
  const x = Math.max(0, Math.min(Math.min(...xs), width - w)), top = Math.min(...ys), bottom = Math.max(...ys)
  const free = y => y >= 0 && y + h <= height && !taken.some(
    other => x < other.x + other.w && other.x < x + w && y < other.y + h && other.y < y + h)
  const places = [top - h, top, bottom - h, bottom]
  for (let y = top + h; y < bottom - h; y += h) places.push(y)
  const y = places.find(free)
  if (y === undefined) return
  taken.push({x, y, w})
  pen.fillStyle = colour
  pen.fillRect(x, y, w, h)
  const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16))
  pen.fillStyle = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? '#000' : '#fff'
  pen.fillText(label, x + 4, y + h / 2 + 1)
}

// The result in words: classes with their shares or counts, the number of texts, the confidence.
function words(answer, objects) {
  const chip = (text, code) => {
    const element = document.createElement('span')
    element.textContent = text
    if (code) element.style.setProperty('--c', code)
    else element.className = 'plain'
    return element
  }
  if (answer.pixels) {
    const all = Object.values(answer.pixels).reduce((sum, count) => sum + count, 0)
    const rows = Object.entries(answer.pixels).sort((a, b) => b[1] - a[1])
    return rows.map(([name, count]) => {
      const label = page.classes.indexOf(name)
      return chip(`${name} ${(100 * count / all).toFixed(1)} %`, label === page.background ? 'transparent' : colour(label))
    })
  }
  if (page.task === 'recognition') return [chip(`confidence ${answer.confidence.toFixed(2)}`)]
  if (answer.structure) {
    const cells = parse(answer).querySelectorAll('td').length, places = answer.boxes ? '' : '; where they are was not learned'
    return [chip(`${cells} cells, probability of a token ${answer.score.toFixed(2)}${places}`)]
  }
  const noun = page.task === 'text_detection' ? 'texts' : 'objects'
  const count = chip(`${objects.length} of ${answer.found.length} ${noun} shown`)
  const names = new Map()
  for (const one of objects) if (one.name) names.set(one.name, [(names.get(one.name) || [0])[0] + 1, one.colour])
  return [count, ...[...names].map(([name, [number, code]]) => chip(`${number} ${name}`, code))]
}

const parse = answer => new DOMParser().parseFromString(`<table>${answer.structure.join('')}</table>`, 'text/html')

// The table that was recognised; its cells show their number and their part of the image. Tokens may be malformed: the browser
// parses them, and only rows, cells and spans are taken from there.
function showTable(card, answer, picture) {
  const table = add(add(card, 'div', '', 'scroll'), 'table', '', 'cells')
  let number = 0
  for (const row of parse(answer).querySelectorAll('tr')) {
    const shown = add(table, 'tr')
    for (const {colSpan, rowSpan} of row.querySelectorAll('td')) {
      const cell = Object.assign(add(shown, 'td'), {colSpan, rowSpan})
      const [x0, y0, x1, y1] = ((answer.boxes || [])[number++] || [0, 0, 0, 0]).map(Math.round)
      add(cell, 'small', `${number}`)
      if (!picture || x1 - x0 < 2 || y1 - y0 < 2) continue
      const part = Object.assign(add(cell, 'canvas'), {width: x1 - x0, height: y1 - y0})
      part.getContext('2d').drawImage(picture, -x0, -y0)
    }
  }
}

// JSON for reading: four decimals, lists of numbers on one line, no PNG file.
function toText(answer) {
  const brief = (key, value) => {
    if (key === 'class_map_png') return `(PNG file, ${value.length} characters of base64)`
    return typeof value === 'number' ? Number(value.toFixed(4)) : value
  }
  return JSON.stringify(answer, brief, 1).replace(/\[[-\d.,\s]*\]/g, list => list.replace(/\s+/g, ' '))
}

const redraw = () => {
  if ($('value')) $('value').textContent = level().toFixed(2)
  results.forEach(draw)
}
// One after the other: the service has a limited queue.
async function predictAll(files) {
  for (const file of files) await predict(file)
}
redraw()
addEventListener('resize', redraw)
if ($('slider')) $('slider').oninput = redraw
$('files').onchange = event => predictAll([...event.target.files])
$('drop').onkeydown = event => { if (event.key === 'Enter' || event.key === ' ') $('files').click() }
$('drop').ondragover = event => { event.preventDefault(); $('drop').classList.add('over') }
$('drop').ondragleave = () => $('drop').classList.remove('over')
$('drop').ondrop = event => {
  event.preventDefault()
  $('drop').classList.remove('over')
  predictAll([...event.dataTransfer.files])
}
