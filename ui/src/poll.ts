import { useEffect, useRef, useState } from "react";
import { Refused, Server } from "./data";

export interface Polled<T> {
  value: T | null;
  problem: Refused | null;
  /** When `value` was read, by this browser's clock in milliseconds. */
  at: number;
}

/** What the server says at `path`, again every `seconds` while the page is visible; a problem leaves the last value. */
export function usePolled<T>(server: Server, path: string | null, seconds: number): Polled<T> {
  const [state, setState] = useState<Polled<T> & { path: string | null }>(() => nothing(path));
  const latest = useRef(path);
  latest.current = path;
  useEffect(() => {
    if (path === null) return;
    const ended = new AbortController();
    let timer = 0;
    const look = async () => {
      if (!document.hidden) {
        try {
          const value = await server.get<T>(path, ended.signal);
          if (!ended.signal.aborted) setState({ path, value, problem: null, at: Date.now() });
        } catch (error) {
          if (ended.signal.aborted) return;
          const problem = error instanceof Refused ? error : new Refused(0, String(error));
          setState((before) => ({ ...(before.path === path ? before : nothing<T>(path)), problem }));
        }
      }
      if (!ended.signal.aborted) timer = window.setTimeout(look, seconds * 1000);
    };
    void look();
    return () => {
      ended.abort();
      window.clearTimeout(timer);
    };
  }, [server, path, seconds]);
  return state.path === path ? state : nothing(path);
}

function nothing<T>(path: string | null): Polled<T> & { path: string | null } {
  return { path, value: null, problem: null, at: 0 };
}
