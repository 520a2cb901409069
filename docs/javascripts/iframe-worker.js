// A browser refuses a Worker to a page that was opened from a folder. There this class runs the worker's script in a
// hidden frame, so that the search of the site needs no server. Zensical would load such a script from another server
// unless one with "iframe-worker" in its path is configured.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.onload = () => this.start(url);
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onerror = (event) => this.onerror?.(event);
      script.onload = () => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.inside) setTimeout(() => this.inside.onmessage({ data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
