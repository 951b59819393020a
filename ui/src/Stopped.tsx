import { Fragment } from "react";
import type { Cause, Run } from "./data";
import { counted } from "./words";

/** Causes that are shown above the graph, and groups that are named with one of them. */
const MOST_CAUSES = 5;
const MOST_GROUPS = 5;
/** States of a group that has stopped, the most pressing first, as the server sorts them. */
export const STOPPED = ["parked", "halted", "dead"];

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
          {furtherOf(one)} {one.state}:{" "}
          <Why cause={one.cause} />
        </p>
      ))}
      {others > 0 && <p className="problem">{counted(others, "more group")} stopped: the table of groups says why.</p>}
    </div>
  );
}

/** The groups that have stopped for one reason, in a line. */
export const namesOf = (one: Told) => one.groups.slice(0, MOST_GROUPS).join(", ") + furtherOf(one);

const furtherOf = ({ groups }: Told) => (groups.length > MOST_GROUPS ? ` and ${counted(groups.length - MOST_GROUPS, "more group")}` : "");

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

/** Groups that have stopped in the same way for the same reason are one; what only a person can mend is first. */
export function causesOf(stopped: { group: string; state: string; cause: Cause }[]): Told[] {
  const found = Map.groupBy(stopped, (one) => JSON.stringify([one.state, one.cause.said, one.cause.place]));
  const told = [...found.values()].map((all) => ({ ...all[0]!, groups: all.map((one) => one.group) }));
  return told.sort((one, other) => STOPPED.indexOf(one.state) - STOPPED.indexOf(other.state));
}
