import { useEffect, useRef, useState } from "react";
import { Refused, type Server } from "./data";

export interface Polled<T> {
  value: T | null;
  problem: Refused | null;
  /** When the log was looked at for `value`, by this browser's clock in milliseconds. */
  at: number;
}

/** What a server has not answered by then is asked for again: a connection may be lost without a word. */
const ANSWER_MILLISECONDS = 30_000;

/** What the server says at `path`, again every `seconds` while the page is visible, and at once when it becomes visible; a
 * problem leaves the last value. */
export function usePolled<T>(server: Server, path: string | null, seconds: number): Polled<T> {
  const [state, setState] = useState<Polled<T> & { path: string | null }>(() => nothing(path));
  const latest = useRef(path);
  latest.current = path;
  useEffect(() => {
    if (path === null) return;
    const ended = new AbortController();
    let timer = 0;
    let asking = false;
    const look = async () => {
      window.clearTimeout(timer);
      if (!document.hidden && !asking) {
        asking = true;
        const late = AbortSignal.timeout(ANSWER_MILLISECONDS);
        try {
          const { value, age } = await server.look<T>(path, AbortSignal.any([ended.signal, late]));
          if (!ended.signal.aborted) setState({ path, value, problem: null, at: Date.now() - age });
        } catch (error) {
          if (ended.signal.aborted) return;
          const silent = `the server has not answered for ${ANSWER_MILLISECONDS / 1000} s`;
          const problem = late.aborted ? new Refused(0, silent) : error instanceof Refused ? error : new Refused(0, String(error));
          setState((before) => ({ ...(before.path === path ? before : nothing<T>(path)), problem }));
        }
        asking = false;
      }
      if (!ended.signal.aborted && !asking) timer = window.setTimeout(look, seconds * 1000);
    };
    const seen = () => void look();
    document.addEventListener("visibilitychange", seen);
    void look();
    return () => {
      document.removeEventListener("visibilitychange", seen);
      ended.abort();
      window.clearTimeout(timer);
    };
  }, [server, path, seconds]);
  return state.path === path ? state : nothing(path);
}

function nothing<T>(path: string | null): Polled<T> & { path: string | null } {
  return { path, value: null, problem: null, at: 0 };
}
