import { Fragment, useState } from "react";
import { Curve } from "./Curve";
import type { Group, Run, Whole } from "./data";
import { State } from "./State";
import { Why } from "./Stopped";
import { count, counted, megabytes, percent, rate } from "./words";

interface Props {
  run: Run;
  trails: Map<string, number[]>;
  selected: string | null;
  select: (group: string | null) => void;
}

/** All groups with their figures. The replicas of a group unfold. */
export function GroupTable({ run, trails, selected, select }: Props) {
  const [unfolded, setUnfolded] = useState<ReadonlySet<string>>(new Set());
  const wholes = new Map(run.wholes.map((one) => [one.name, one]));
  const replicas = Map.groupBy(
    run.groups.filter((one) => one.whole !== null),
    (one) => one.whole,
  );
  const rows: (Group | Whole)[] = [...run.groups.filter((one) => one.whole === null), ...wholes.values()];
  const order = new Map(run.operators.map((one, index) => [one.group, index]));
  rows.sort((one, other) => (order.get(one.name) ?? 0) - (order.get(other.name) ?? 0));
  const toggle = (name: string) =>
    setUnfolded((before) => {
      const next = new Set(before);
      if (!next.delete(name)) next.add(name);
      return next;
    });
  const row = (one: Group | Whole, inside: boolean) => (
    <tr key={one.name} className={one.name === selected ? "selected" : ""}>
      <th scope="row" className={inside ? "inside" : ""}>
        <button type="button" className="link" aria-pressed={one.name === selected} onClick={() => select(one.name)}>
          {one.name}
        </button>
        {wholes.has(one.name) && (
          <button type="button" className="fold" aria-expanded={unfolded.has(one.name)} onClick={() => toggle(one.name)}>
            {counted(wholes.get(one.name)!.replicas_in_use, "replica")} {unfolded.has(one.name) ? "▴" : "▾"}
          </button>
        )}
      </th>
      <td>
        <State state={one.state} words={one.condition} />
        {one.cause !== null && (
          <div className="small">
            <Why cause={one.cause} />
          </div>
        )}
      </td>
      <td className="number">{one.incarnation || ""}</td>
      <td className="number">{one.recoveries || ""}</td>
      <td className="number spare">{rate(one.events_per_second)}</td>
      <td className="number">
        <Curve values={trails.get(one.name) ?? []} /> {rate(one.records_per_second)}
      </td>
      <td className="number">{percent(one.busy)}</td>
      <td className="number">{percent(one.blocked)}</td>
      <td className="number spare">{megabytes(one.rss_bytes)}</td>
      <td className="number">{one.lag.events ? count(one.lag.events) : ""}</td>
      <td className="number">{one.writes ? count(one.writes) : ""}</td>
      <td className="number">{percent(one.done)}</td>
    </tr>
  );
  return (
    <section aria-label="Groups">
      <h2>Groups</h2>
      <div className="scroll" tabIndex={0} role="region" aria-label="Table of groups">
        <table className="figures">
          <thead>
            <tr>
              <th scope="col">group</th>
              <th scope="col">state</th>
              <th scope="col" className="number">incarnation</th>
              <th scope="col" className="number">recoveries</th>
              <th scope="col" className="number spare" title="taken in by its driver, over its last 10 seconds">events/s</th>
              <th scope="col" className="number" title="acknowledged in the log, over the last 4 seconds or more">records/s</th>
              <th scope="col" className="number">busy</th>
              <th scope="col" className="number">held up</th>
              <th scope="col" className="number spare">MB</th>
              <th scope="col" className="number">lag (events)</th>
              <th scope="col" className="number">writes</th>
              <th scope="col" className="number">done</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((one) => (
              <Fragment key={one.name}>
                {row(one, false)}
                {unfolded.has(one.name) && (replicas.get(one.name) ?? []).map((replica) => row(replica, true))}
              </Fragment>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
