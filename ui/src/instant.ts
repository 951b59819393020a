// What d3-zoom takes from d3-transition and d3-interpolate (vite.config.ts): the graph moves at once, and nothing is animated.
// Both, with the timers, the easing and the colours that they bring, are larger than half of the page's own code.

import { type BaseType, type Selection, selection } from "d3-selection";

type Selected = Selection<BaseType, unknown, null, undefined>;
type Step = (this: BaseType, ...given: unknown[]) => unknown;

/** A transition that is at its end when it begins. */
class Instant {
  private readonly heard = new Map<string, Step>();
  constructor(private readonly of: Selected) {}

  selection = () => this.of;
  duration = () => this;
  on(types: string, step: Step) {
    for (const type of types.split(" ")) this.heard.set(type, step);
    return this;
  }
  tween(name: string, begin: (...given: Parameters<Step>) => (at: number) => void) {
    const { heard } = this;
    this.of.each(function (...given) {
      heard.get(`start.${name}`)?.apply(this, given);
      begin.apply(this, given)(1);
      heard.get(`end.${name}`)?.apply(this, given);
    });
    return this;
  }
  call(step: (of: Instant, ...given: unknown[]) => void, ...given: unknown[]) {
    step(this, ...given);
    return this;
  }
}

Object.assign(selection.prototype, {
  transition(this: Selected) {
    return new Instant(this);
  },
  interrupt(this: Selected) {
    return this;
  },
});

/** Nothing is under way that could be interrupted. */
export const interrupt = () => {};
/** What is between two views, which is never asked for. */
export const interpolateZoom = () => {};
export const interpolate = interpolateZoom;
