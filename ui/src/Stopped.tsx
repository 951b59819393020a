import { Fragment } from "react";
import type { Cause, Run } from "./data";
import { counted } from "./words";

/** Causes that are shown above the graph, and groups that are named with one of them. */
const MOST_CAUSES = 5;
const MOST_GROUPS = 5;

interface Told {
  state: string;
  cause: Cause;
  groups: string[];
}

/** What has stopped and why, each cause once: the first thing that a person who opens the run must know. */
export function Stopped({ run, select }: { run: Run; select: (group: string) => void }) {
  const told = causesOf(run.groups.flatMap(({ name, state, cause }) => (cause === null ? [] : [{ group: name, state, cause }])));
  const others = told.slice(MOST_CAUSES).reduce((sum, one) => sum + one.groups.length, 0);
  return (
    <div role="alert" aria-label="What has stopped" className="stops">
      {told.slice(0, MOST_CAUSES).map((one) => (
        <p key={`${one.state} ${one.cause.said} ${one.cause.place}`} className={one.state === "halted" ? "next" : "problem"}>
          {one.groups.slice(0, MOST_GROUPS).map((group, index) => (
            <Fragment key={group}>
              {index > 0 && ", "}
              <button type="button" className="link" onClick={() => select(group)}>
                {group}
              </button>
            </Fragment>
          ))}
          {one.groups.length > MOST_GROUPS && ` and ${counted(one.groups.length - MOST_GROUPS, "more group")}`} {one.state}:{" "}
          <Why cause={one.cause} />
        </p>
      ))}
      {others > 0 && <p className="problem">{counted(others, "more group")} stopped for other reasons: the table of groups says which.</p>}
    </div>
  );
}

/** A cause, and the line of the author's code where there is one. */
export function Why({ cause }: { cause: Cause }) {
  return (
    <>
      <span className="cause">{cause.said}</span>
      {cause.place !== "" && (
        <>
          {" "}
          <code className="place">{cause.place}</code>
        </>
      )}
    </>
  );
}

/** Groups that have stopped in the same way for the same reason are one. */
export function causesOf(stopped: { group: string; state: string; cause: Cause }[]): Told[] {
  const found = Map.groupBy(stopped, (one) => JSON.stringify([one.state, one.cause.said, one.cause.place]));
  return [...found.values()].map((all) => ({ state: all[0]!.state, cause: all[0]!.cause, groups: all.map((one) => one.group) }));
}
