"use strict";
(() => {
  // <define:BUILD_FILES>
  var define_BUILD_FILES_default = ["app.webmanifest", "cache.js", "icon-192.png", "icon-512.png", "icon.svg", "index.html", "page.css", "page.js", "pumice.js", "receipt.js", "sign.js", "text.js", "train_session.js", "worker.js"];

  // page/sw.ts
  var folder = new URL("./", self.location.href), MINE = `pumice-page ${folder.pathname} `, SHELL = MINE + "3ff52ed98169a686", shellUrls = new Set(define_BUILD_FILES_default.map((name) => new URL(name, folder).href)), page = new URL("index.html", folder).href, PATIENCE_MS = 3e3;
  self.addEventListener("install", (event) => event.waitUntil(install()));
  self.addEventListener("activate", (event) => event.waitUntil(activate()));
  self.addEventListener("message", (event) => {
    event.data === "take over" && self.skipWaiting();
  });
  self.addEventListener("fetch", (event) => {
    let { request } = event;
    if (request.method !== "GET") return;
    let url = new URL(request.url);
    url.search = url.hash = "", request.mode === "navigate" && (url.href === folder.href || url.href === page) ? event.respondWith(start(request)) : shellUrls.has(url.href) && event.respondWith(shell(url.href, request));
  });
  async function install() {
    await (await caches.open(SHELL)).addAll([...shellUrls].map((url) => new Request(url, { cache: "no-cache" })));
  }
  async function activate() {
    for (let name of await caches.keys())
      name.startsWith(MINE) && name !== SHELL && await caches.delete(name);
    await self.clients.claim();
  }
  async function shell(url, request) {
    return await (await caches.open(SHELL)).match(url) ?? fetch(request);
  }
  async function start(request) {
    let kept = await (await caches.open(SHELL)).match(page);
    if (!kept) return fetch(request);
    let late = new Promise((resolve) => setTimeout(() => resolve(null), PATIENCE_MS)), fresh = await Promise.race([fetch(request).catch(() => null), late]);
    return !fresh || fresh.status >= 500 || fresh.ok && (await fresh.clone().text()).includes('name="generator" content="Pumice"') ? kept : ((fresh.ok || fresh.status === 404 || fresh.status === 410) && (await self.registration.unregister(), await caches.delete(SHELL)), fresh);
  }
})();
