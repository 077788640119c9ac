"use strict";
// Player of an episode: cameras in step, curves, bands. `pairstream.view.player` makes its arguments.

function pairstreamPlayer(id, episode, options) {
  const root = document.getElementById(id);
  if (!root) { requestAnimationFrame(() => pairstreamPlayer(id, episode, options)); return; }
  const AHEAD = 900, BEHIND = 300, AT_ONCE = 12;
  const HUES = ["#1553a5", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0e7490", "#a16207", "#be185d"];
  const last = episode.steps - 1;
  let step = Math.min(Math.max(options.step || 0, 0), Math.max(last, 0));
  let playing = false, speed = 1, began = 0, from = 0, marked = Boolean(options.marked);

  const element = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const style = `
    .ps { font: 13px/1.4 system-ui, sans-serif; color: #1b1e24; max-width: 1500px; }
    .ps-cameras { display: flex; flex-wrap: wrap; gap: 8px; }
    .ps-camera { margin: 0; } .ps-camera figcaption { color: #667; font-size: 12px; }
    .ps-camera canvas { display: block; background: #e8e9ee; border-radius: 4px; }
    .ps-bar { display: flex; align-items: center; gap: 10px; margin: 8px 0; }
    .ps-bar button, .ps-bar a, .ps-bar select { font: inherit; padding: 3px 10px; border: 1px solid #c5c8d0; border-radius: 4px;
      background: white; color: #1b1e24; text-decoration: none; cursor: pointer; }
    .ps-bar button.on { background: #b00020; color: white; border-color: #b00020; }
    .ps-bar input { flex: 1; accent-color: #1553a5; }
    .ps-where { font-variant-numeric: tabular-nums; white-space: nowrap; }
    .ps-keys { color: #667; font-size: 12px; margin: 2px 0 8px; }
    .ps-lines { position: relative; }
    .ps-row { display: grid; grid-template-columns: 190px 1fr 90px; align-items: center; }
    .ps-row > :first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; padding-right: 8px; font-size: 12px; }
    .ps-row > :last-child { padding-left: 8px; font-variant-numeric: tabular-nums; font-size: 12px; white-space: nowrap; overflow: hidden;
      text-overflow: ellipsis; }
    .ps-lane { position: relative; height: 20px; background: #eef0f4; margin: 1px 0; cursor: pointer; overflow: hidden; }
    .ps-band { position: absolute; top: 0; bottom: 0; overflow: hidden; white-space: nowrap; font-size: 11px; line-height: 20px;
      padding-left: 4px; box-sizing: border-box; color: #1b1e24; border-left: 1px solid white; }
    .ps-row canvas { display: block; width: 100%; height: 26px; cursor: pointer; }
    .ps-cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: #b00020; pointer-events: none; z-index: 2; }
    .ps-window { position: absolute; top: 0; bottom: 0; background: rgba(250, 190, 30, 0.28); pointer-events: none; z-index: 1; }
    .ps details > summary { display: list-item; list-style: revert; cursor: pointer; font-weight: 600; margin: 6px 0 2px; }
    .ps-fault { color: #b00020; }
    @media (max-width: 700px) { .ps-row { grid-template-columns: 90px 1fr 60px; } }`;
  root.classList.add("ps");
  root.replaceChildren(element("style", {}, style));

  // Frames: fetched ahead of the cursor, kept as images around it.
  const cameras = episode.cameras.map((camera, number) => {
    const [height, width] = camera.size, shown = Math.min(320, Math.max(width, 224)), scale = shown / width;
    const canvas = element("canvas", {width, height, style: `width:${shown}px;height:${Math.round(height * scale)}px`});
    canvas.dataset.camera = camera.name;
    const caption = element("figcaption", {}, "");
    return {...camera, number, canvas, caption, images: new Map(), missing: new Set(camera.missing), shown: -2};
  });
  const label = (camera) => camera.name + (camera.role && camera.role !== camera.name ? ` (${camera.role})` : "")
    + (camera.depth ? ", depth: red near, blue far" : "");
  let loading = 0;

  function source(camera, at) {
    return typeof camera.frames === "string" ? camera.frames.replace("{step}", at) : camera.frames[at];
  }
  function load(camera, at) {
    const where = source(camera, at), held = {image: null, fault: "", done: false};
    camera.images.set(at, held);
    if (where && where.fault) { held.fault = where.fault; held.done = true; return; }
    loading += 1;
    const finish = (fault) => { held.done = true; held.fault = fault; loading -= 1; fill(); if (at === step) draw(); };
    const image = new Image();
    image.onload = () => { held.image = image; finish(""); };
    image.onerror = () => {
      fetch(where).then((answer) => answer.ok ? "the bytes are no picture" : answer.text())
        .then(finish, () => finish("the browser's server does not answer"));
    };
    image.src = where;
  }
  function fill() {
    // The nearest steps first, of all cameras.
    for (let ahead = 0; ahead <= AHEAD && loading < AT_ONCE; ahead += 1) {
      const at = step + ahead;
      if (at > last) break;
      for (const camera of cameras) {
        if (!camera.missing.has(at) && !camera.images.has(at)) load(camera, at);
      }
    }
    for (let behind = 1; behind <= BEHIND && loading < AT_ONCE && step - behind >= 0; behind += 1) {
      for (const camera of cameras) {
        if (!camera.missing.has(step - behind) && !camera.images.has(step - behind)) load(camera, step - behind);
      }
    }
    for (const camera of cameras) {
      if (camera.images.size <= AHEAD + BEHIND) continue;
      for (const at of camera.images.keys()) {
        if (at < step - BEHIND || at > step + AHEAD) camera.images.delete(at);
      }
    }
  }
  const ready = (at) => cameras.every((camera) => camera.missing.has(at) || (camera.images.get(at) || {}).done);

  function paint(camera) {
    const context = camera.canvas.getContext("2d"), {width, height} = camera.canvas;
    const held = camera.images.get(step);
    const state = camera.missing.has(step) ? "missing" : !held || !held.done ? "loading" : held.fault ? "damaged" : "shown";
    camera.canvas.dataset.state = state;
    camera.canvas.dataset.step = step;
    if (state === "loading") return;
    if (state === "shown") {
      context.drawImage(held.image, 0, 0, width, height);
    } else {
      context.fillStyle = state === "damaged" ? "#fbe9eb" : "#e8e9ee";
      context.fillRect(0, 0, width, height);
      context.fillStyle = state === "damaged" ? "#b00020" : "#667";
      context.font = `${Math.max(10, Math.round(width / 16))}px system-ui, sans-serif`;
      context.fillText(state === "damaged" ? "damaged frame" : "no frame stored", width / 16, height / 2);
    }
    camera.caption.textContent = label(camera) + (state === "damaged" ? `: ${held.fault}` : "");
    camera.caption.style.maxWidth = camera.canvas.style.width;
    camera.caption.classList.toggle("ps-fault", state === "damaged");
  }

  // Controls.
  const toggle = element("button", {title: "space"}, "▶ play");
  const slider = element("input", {type: "range", min: 0, max: Math.max(last, 0), step: 1, value: step, "aria-label": "step"});
  const where = element("span", {class: "ps-where"});
  const speeds = element("select", {title: "speed", "aria-label": "speed"});
  for (const each of [0.25, 0.5, 1, 2, 4]) speeds.append(element("option", {value: each}, `${each}×`));
  speeds.value = "1";
  const link = element("a", {title: "a link to this step"}, "link");
  const bar = element("div", {class: "ps-bar"}, toggle, speeds, slider, where, link);
  const mark = element("button", {title: "m"}, "mark");
  if (options.mark) bar.append(mark);
  for (const [key, text] of [["previous", "‹ previous"], ["next", "next ›"]]) {
    if (options[key]) bar.append(element("a", {href: options[key], title: key[0]}, text));
  }
  const rate = `${+episode.rate.toPrecision(4)} steps/s` + (episode.knowsRate ? "" : " (the dataset declares no rate)");
  const hint = `space: play · ← →: step (shift: 10) · home, end` + (options.previous !== undefined ? " · p, n: previous, next episode" : "")
    + (options.mark ? " · m: mark" : "") + ` · ${rate}`;
  const note = element("div", {class: "ps-keys"}, hint);
  const rail = element("div", {class: "ps-cameras"}, ...cameras.map((camera) => element("figure", {class: "ps-camera"}, camera.canvas, camera.caption)));

  // Bands and curves share one axis of steps.
  const lines = element("div", {class: "ps-lines"}), cursor = element("div", {class: "ps-cursor"});
  const span = episode.window ? element("div", {class: "ps-window", title: "the window of the sample"}) : null;
  lines.append(cursor, ...(span ? [span] : []));
  const place = (at) => episode.steps ? (at + 0.5) / episode.steps : 0;
  const seekOn = (target) => {
    const seek = (event) => {
      const box = target.getBoundingClientRect();
      go(Math.floor((event.clientX - box.left) / box.width * episode.steps));
    };
    target.addEventListener("pointerdown", (event) => { stop(); target.setPointerCapture(event.pointerId); seek(event); });
    target.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
  };
  const follow = [];
  function section(title, open, build) {
    const box = element("details", open ? {open: ""} : {}, element("summary", {}, title));
    let built = false;
    const make = () => { if (box.open && !built) { built = true; build(box); } if (box.open) draw(); };
    box.addEventListener("toggle", make);
    lines.append(box);
    if (open) { built = true; build(box); }
  }
  function addLane(box, lane) {
    const strip = element("div", {class: "ps-lane"}), value = element("span"), words = [...new Set(lane.bands.map((band) => band[2]))];
    for (const [start, stop, text] of lane.bands) {
      if (text === "false") continue;
      const hue = text === "true" ? "#f3b0b8" : HUES[words.indexOf(text) % HUES.length] + "33";
      strip.append(element("div", {class: "ps-band", title: `${text}: steps ${start} to ${stop - 1}`,
        style: `left:${100 * start / episode.steps}%;width:${100 * (stop - start) / episode.steps}%;background:${hue}`}, text));
    }
    seekOn(strip);
    box.append(element("div", {class: "ps-row"}, element("span", {title: lane.name}, lane.name), strip, value));
    follow.push(() => {
      if (!box.open) return;
      const now = lane.bands.find(([start, stop]) => start <= step && step < stop);
      value.textContent = value.title = now ? now[2] : "–";
    });
  }
  function addCurve(box, curve, dim, hue) {
    const canvas = element("canvas"), value = element("span"), values = curve.values[dim];
    const numbers = values.filter((each) => typeof each === "number");
    const low = Math.min(...numbers), high = Math.max(...numbers);
    const paintCurve = () => {
      const ratio = window.devicePixelRatio || 1, width = Math.max(canvas.clientWidth, 10) * ratio, height = 26 * ratio;
      canvas.width = width; canvas.height = height;
      const context = canvas.getContext("2d");
      context.fillStyle = dim % 2 ? "#f5f6f9" : "#eef0f4";
      context.fillRect(0, 0, width, height);
      context.strokeStyle = hue; context.lineWidth = 1.4 * ratio; context.beginPath();
      let pen = false;
      values.forEach((each, at) => {
        const x = place(at) * width;
        if (typeof each !== "number") {
          context.fillStyle = each === null ? "#e8a5ad" : "#b00020";
          context.fillRect(x - 0.5 * width / episode.steps, 0, Math.max(width / episode.steps, 1), height);
          pen = false;
          return;
        }
        const y = high > low ? height - 3 * ratio - (each - low) / (high - low) * (height - 6 * ratio) : height / 2;
        if (pen) context.lineTo(x, y); else { context.moveTo(x - 1, y); context.lineTo(x, y); }
        pen = true;
      });
      context.stroke();
    };
    seekOn(canvas);
    const name = curve.dims[dim];
    const title = numbers.length ? `${curve.name} ${name}: ${low} to ${high}` : `${curve.name} ${name}: no value`;
    box.append(element("div", {class: "ps-row"}, element("span", {title}, name), canvas, value));
    new ResizeObserver(paintCurve).observe(canvas);
    follow.push(() => {
      if (!box.open) return;
      const now = values[step];
      value.textContent = now === null || now === undefined ? "nan" : typeof now === "number" ? +now.toPrecision(4) : now;
      value.classList.toggle("ps-fault", typeof now !== "number");
    });
  }
  if (episode.lanes.length) section("texts and flags", true, (box) => episode.lanes.forEach((lane) => addLane(box, lane)));
  for (const curve of episode.curves.filter((each) => each.group !== "column")) {
    const raw = curve.name === curve.group, title = raw ? `${curve.name} (as the dataset has it)` : `${curve.name} (canonical)`;
    const open = raw && curve.dims.length <= 16;
    section(title, open, (box) => curve.dims.forEach((_, dim) => addCurve(box, curve, dim, HUES[dim % HUES.length])));
  }
  const others = episode.curves.filter((each) => each.group === "column");
  for (const curve of others) {
    const more = curve.left ? ` (${curve.dims.length} of ${curve.dims.length + curve.left} dimensions)` : "";
    section(curve.name + more, false, (box) => curve.dims.forEach((_, dim) => addCurve(box, curve, dim, HUES[dim % HUES.length])));
  }

  root.append(rail, bar, note, lines);

  // Where the steps are in `lines`, measured only when the layout changes.
  const axis = {left: 0, width: 0};
  function measure() {
    const row = [...lines.querySelectorAll("details[open] > .ps-row")][0];
    if (row) {
      const box = row.children[1].getBoundingClientRect();
      Object.assign(axis, {left: box.left - lines.getBoundingClientRect().left, width: box.width});
    }
    if (span) {
      span.style.left = `${axis.left + episode.window[0] / episode.steps * axis.width}px`;
      span.style.width = `${(episode.window[1] - episode.window[0]) / episode.steps * axis.width}px`;
    }
    draw();
  }
  function draw() {
    for (const camera of cameras) paint(camera);
    slider.value = step;
    where.textContent = `step ${step} of ${episode.steps}` + (episode.knowsRate ? `, ${(step / episode.rate).toFixed(2)} s` : "");
    cursor.style.left = `${axis.left + place(step) * axis.width}px`;
    for (const each of follow) each();
    toggle.textContent = playing ? "❚❚ pause" : "▶ play";
    mark.textContent = marked ? "marked" : "mark";
    mark.classList.toggle("on", marked);
  }
  function remember() {
    const address = new URL(location.href);
    address.searchParams.set("step", step);
    link.href = address.href;
    if (location.protocol !== "file:") history.replaceState(null, "", address.href);
  }
  let later = 0;
  function go(to) {
    step = Math.min(Math.max(to, 0), Math.max(last, 0));
    fill();
    draw();
    clearTimeout(later);
    later = setTimeout(remember, 150);
  }
  function tick(now) {
    if (!playing) return;
    const due = from + Math.floor((now - began) / 1000 * episode.rate * speed);
    if (due > step) {
      let next = step;
      while (next < Math.min(due, last) && ready(next + 1)) next += 1;
      if (next < Math.min(due, last)) { began = now; from = next; }  // waits for frames
      if (next !== step) { step = next; fill(); draw(); }
      if (step >= last) { stop(); return; }
    }
    requestAnimationFrame(tick);
  }
  function start() {
    if (step >= last) step = 0;
    playing = true; from = step;
    fill(); draw();
    requestAnimationFrame((now) => { began = now; tick(now); });
  }
  function stop() {
    if (playing) { playing = false; remember(); }
    draw();
  }
  function setMark() {
    if (!options.mark) return;
    fetch(options.mark, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({marked: !marked})})
      .then((answer) => answer.ok ? answer.json() : answer.text().then((text) => Promise.reject(text)))
      .then((answer) => { marked = answer.marked; note.textContent = hint; draw(); })
      .catch((fault) => { note.textContent = `not marked: ${fault}`; });
  }
  toggle.addEventListener("click", () => playing ? stop() : start());
  slider.addEventListener("input", () => { if (playing) { playing = false; } go(Number(slider.value)); });
  speeds.addEventListener("change", () => { speed = Number(speeds.value); from = step; began = performance.now(); });
  mark.addEventListener("click", setMark);
  const keys = {
    " ": () => playing ? stop() : start(),
    ArrowLeft: (event) => { stop(); go(step - (event.shiftKey ? 10 : 1)); },
    ArrowRight: (event) => { stop(); go(step + (event.shiftKey ? 10 : 1)); },
    Home: () => { stop(); go(0); },
    End: () => { stop(); go(last); },
    m: setMark,
    n: () => { if (options.next) location.href = options.next; },
    p: () => { if (options.previous) location.href = options.previous; },
  };
  document.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.altKey || event.metaKey || /^(textarea|select)$/i.test(event.target.tagName)
      || (event.target.tagName === "INPUT" && event.target !== slider)) return;
    event.preventDefault();
    act(event);
  });
  new ResizeObserver(measure).observe(lines);
  fill();
  measure();
  remember();
}
