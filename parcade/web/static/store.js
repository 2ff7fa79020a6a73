// The summaries of all runs, as the server last told them, and who wants to hear of changes.

export class Store {
  #runs = new Map();
  #listeners = new Set();
  /** Number of older runs that the server does not list. */
  notShown = 0;
  /** Names of the runs to compare, and whether the user chose them: they stay chosen while other views are shown. */
  chosen = new Set();
  hasChosen = false;

  /** All runs, newest first. */
  get runs() {
    return [...this.#runs.values()].sort((a, b) => b.started - a.started || a.id.localeCompare(b.id));
  }

  run(name) {
    return this.#runs.get(name);
  }

  replace({ runs, not_shown: notShown }) {
    this.notShown = notShown;
    this.#runs = new Map(runs.map((run) => [run.id, run]));
    this.#tell(new Set(this.#runs.keys()));
  }

  /** Apply a message of the live WebSocket. */
  take({ type, changed, gone, not_shown: notShown }) {
    if (type !== "runs") return;
    this.notShown = notShown;
    for (const run of changed) this.#runs.set(run.id, run);
    for (const name of gone) this.#runs.delete(name);
    this.#tell(new Set([...changed.map((run) => run.id), ...gone]));
  }

  /** Call `listener(names)` after changes; return a function that ends it. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #tell(names) {
    for (const listener of this.#listeners) listener(names);
  }
}
