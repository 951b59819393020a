import { useEffect, useMemo, useState } from "react";
import type { Refused } from "./data";
import { counted, seconds } from "./words";

/** Figures that are so old are no picture of now, and are marked. */
const LATE_SECONDS = 10;

/** How long ago that was, in seconds; it grows on the screen, whether or not an answer comes. */
function useAge(at: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  return Math.max(0, (Math.max(now, at) - at) / 1000);
}

/** Why the page has no new figures; those that it shows are older then, and it says how old, outside of what is announced. */
export function Problem({ problem, at }: { problem: Refused | null; at: number }) {
  const age = useAge(at);
  if (problem === null) return null;
  const hint = problem.status === 401 ? " Log in again, or open the address that was printed." : "";
  return (
    <p className="problem">
      <span role="alert">
        {problem.message}.{hint}
      </span>
      {at > 0 && ` What is shown is ${seconds(age)} old.`}
    </p>
  );
}

/** How old the figures are: always, so that a page that stands still is not taken for a run that does. */
export function Age({ at, problem }: { at: number; problem: Refused | null }) {
  const age = useAge(at);
  if (at === 0) return null;
  const late = age >= LATE_SECONDS;
  return (
    <span className={late ? "age late" : "age small"}>
      seen {Math.round(age)} s ago
      {late && problem === null && <span role="alert">: the log, or the server, takes long to answer</span>}
    </span>
  );
}

/** Warnings above the graph: the others are folded, so that hundreds of them do not push it off the screen. */
const MOST_WARNINGS = 5;

/** What is wrong with the run. It is announced when it changes, not whenever the seconds in it do. */
export function Warnings({ warnings }: { warnings: string[] }) {
  const first = warnings.slice(0, MOST_WARNINGS);
  const others = warnings.slice(MOST_WARNINGS);
  const more = others.length === 0 ? "" : counted(others.length, "more warning");
  const said = [...first, more].join(" ");
  const announced = useMemo(() => said, [said.replace(/[\d.]+ s\b/g, "")]); // eslint-disable-line
  return (
    <>
      <p role="alert" className="unseen">
        {announced}
      </p>
      {first.map((warning, index) => (
        <p key={index} className="problem">
          {warning}
        </p>
      ))}
      {more && (
        <details>
          <summary>{more}</summary>
          {others.map((warning, index) => (
            <p key={index} className="problem">
              {warning}
            </p>
          ))}
        </details>
      )}
    </>
  );
}
