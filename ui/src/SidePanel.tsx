import { useEffect, useRef, useState } from "react";
import { GroupActions } from "./Actions";
import type { Panel, Rights, Run, Server } from "./data";
import { usePolled } from "./poll";
import { Problem } from "./Problem";
import { State } from "./State";
import { clock, count, counted, megabytes, moment, percent, rate, seconds, webAddress } from "./words";

interface Props {
  server: Server;
  run: Run;
  rights: Rights | null;
  group: string;
  close: () => void;
  select: (group: string) => void;
  every: number;
}

/** One group: its drivers, its last error and where it was, what it printed, its Spark UI, its requests to scale. */
export function SidePanel({ server, run, rights, group, close, select, every }: Props) {
  const panel = usePolled<Panel>(server, `api/runs/${run.uid}/groups/${encodeURIComponent(group)}`, every);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);

  const found = run.groups.find((one) => one.name === group);
  const whole = run.wholes.find((one) => one.name === group);
  const one = found ?? whole;
  const replicas = run.groups.filter((replica) => replica.whole === group);
  const ui = webAddress(panel.value?.spark_ui ?? "");
  const manager = webAddress(panel.value?.manager_page ?? "");
  return (
    <aside className="panel" aria-label={`Group ${group}`} onKeyDown={(event) => event.key === "Escape" && close()}>
      <header>
        <h2 ref={heading} tabIndex={-1}>
          {group}
        </h2>
        {one !== undefined && <State state={one.state} words={one.condition} />}
        <button type="button" className="close" onClick={close} aria-label="Close (Escape)">
          ✕
        </button>
      </header>
      <Problem problem={panel.problem} at={panel.at} />
      {one === undefined && <p>The run has no such group in use.</p>}
      {one !== undefined && <GroupActions server={server} run={run} rights={rights} group={one} whole={whole !== undefined} />}
      {one !== undefined && (
        <dl>
          <Fact name="state since" value={`${moment(one.since)} UTC`} />
          <Fact name="wanted" value={one.desired} />
          <Fact name="process" value={one.process ?? ""} />
          <Fact name="last heartbeat" value={one.heartbeat_seconds_ago === null ? "" : `${seconds(one.heartbeat_seconds_ago)} ago`} />
          <Fact name="busy / held up" value={one.busy === null ? "" : `${percent(one.busy)} / ${percent(one.blocked)}`} />
          <Fact name="in the author's code" value={one.call} />
          <Fact name="events per second" value={rate(one.events_per_second)} />
          <Fact name="memory" value={one.rss_bytes > 0 ? `${megabytes(one.rss_bytes)} MB` : ""} />
          <Fact name="commits" value={count(one.commits)} />
          <Fact name="records received / sent" value={`${count(one.received.records)} / ${count(one.sent.records)}`} />
          <Fact name="writes applied / pending" value={`${count(one.writes)} / ${count(one.pending_writes)}`} />
          <Fact name="standby" value={one.standby} />
          <Fact name="on the cluster" value={one.cluster} />
          <Fact name="Spark application" value={one.spark?.application ?? ""} />
        </dl>
      )}
      <Away to={ui} words="Open its Spark UI" />
      <Away to={manager} words="Open its cluster manager's page" />
      {found?.last_error && (
        <>
          <h3>
            {found.last_error.is_present ? "Why it has stopped" : `Last error (incarnation ${found.last_error.incarnation})`}
          </h3>
          <pre className="error">
            {found.last_error.text}
          </pre>
        </>
      )}
      {whole !== undefined && (
        <>
          <h3>
            {whole.replicas_in_use} of {counted(whole.most, "replica")} in use, {whole.slots_done} of {counted(whole.slots, "slot")} done
          </h3>
          <ul className="plain">
            {replicas.map((replica) => (
              <li key={replica.name}>
                <button type="button" className="link" onClick={() => select(replica.name)}>
                  {replica.name}
                </button>{" "}
                <State state={replica.state} words={replica.condition} /> busy {percent(replica.busy) || "unknown"}
              </li>
            ))}
          </ul>
          {whole.requests.length > 0 && <h3>Requests to scale</h3>}
          <ul className="plain">
            {whole.requests.map((request) => (
              <li key={request.request}>
                {clock(request.requested_at)} {counted(request.replicas, "replica")}, {request.state}, by {request.by}
                {request.reason && ` (${request.reason})`}
                {request.note && `: ${request.note}`}
              </li>
            ))}
          </ul>
        </>
      )}
      {panel.value !== null && (
        <>
          <h3>Drivers{panel.value.drivers_in_all > panel.value.drivers.length ? ` (the latest of ${count(panel.value.drivers_in_all)})` : ""}</h3>
          <ol className="plain drivers">
            {panel.value.drivers.map((driver) => (
              <li key={`${driver.group}/${driver.incarnation}`}>
                <div>
                  <strong>
                    {driver.group}/{driver.incarnation}
                  </strong>{" "}
                  {clock(driver.claimed_at)}
                  {driver.registered_at !== null && `, registered +${seconds(driver.registered_at - driver.claimed_at)}`}
                  {driver.first_commit_at !== null && `, first commit +${seconds(driver.first_commit_at - driver.claimed_at)}`}
                  {driver.ended_at !== null && `, ended ${clock(driver.ended_at)}`}
                </div>
                <div className="small">launched: {driver.reason}</div>
                {driver.process !== null && <div className="small">process {driver.process}</div>}
                {driver.failed_at !== null && <div className="small">failed at {driver.failed_at}</div>}
                {driver.error !== null && <div className="small wrong">ended: {driver.error.split("\n", 1)[0]}</div>}
              </li>
            ))}
          </ol>
          <h3>What the driver has printed</h3>
          <Lines lines={panel.value.lines} whole={whole !== undefined} />
        </>
      )}
    </aside>
  );
}

/** Lines that are shown at first: the panel grows with what is in it, and does not scroll by itself. */
const MOST_LINES = 30;

function Lines({ lines, whole }: { lines: string[] | null; whole: boolean }) {
  const [all, setAll] = useState(false);
  if (whole) return <p className="small">Each replica has lines of its own: choose one.</p>;
  if (lines === null) return <p className="small">You may not read the logs of this DAG's tasks.</p>;
  if (lines.length === 0) return <p className="small">It has sent nothing to the log yet.</p>;
  return (
    <>
      {lines.length > MOST_LINES && (
        <button type="button" className="fold" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? `the last ${MOST_LINES}` : `the last ${counted(lines.length, "line")}`}
        </button>
      )}
      <pre className="lines" aria-label="The last lines">
        {(all ? lines : lines.slice(-MOST_LINES)).join("\n")}
      </pre>
    </>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return value === "" ? null : (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Away({ to, words }: { to: string | null; words: string }) {
  return to === null ? null : (
    <p>
      <a href={to} target="_blank" rel="noreferrer noopener">
        {words}
      </a>
    </p>
  );
}
