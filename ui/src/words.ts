// Numbers and times for people.

export const count = (value: number): string => Math.round(value).toLocaleString("en-US");

export const counted = (value: number, name: string): string => `${count(value)} ${name}${value === 1 ? "" : "s"}`;

/** How much is shown: `200 of 1,204 ports`, or `12 ports` if that is all. */
export const part = (shown: number, all: number, name: string): string => (shown < all ? `${count(shown)} of ` : "") + counted(all, name);

export const rate = (value: number | null): string =>
  value === null ? "" : value >= 10_000 ? `${(value / 1000).toFixed(1)} k` : value >= 10 ? count(value) : value.toFixed(1);

export const percent = (value: number | null): string => (value === null ? "" : `${Math.round(value * 100)} %`);

export const megabytes = (bytes: number): string => (bytes > 0 ? count(bytes / 2 ** 20) : "");

/** What has become of a run that was given up: which one is in its place, and why. */
export function replaced({ superseded_by, because }: { superseded_by: string | null; because: string | null }): string {
  const said = [superseded_by === null ? "" : `replaced by run ${superseded_by.slice(0, 8)}`, because ?? ""];
  return said.filter((one) => one !== "").join(": ");
}

export function seconds(value: number | null): string {
  if (value === null) return "";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

/** How long something took, in the two largest units: `1 h 20 min`. */
export function time(value: number): string {
  const whole = Math.max(0, Math.round(value));
  const parts: [number, string][] = [
    [Math.floor(whole / 86_400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([many]) => many > 0);
  const shown = first < 0 ? parts.slice(-1) : parts.slice(first, first + 2).filter(([many]) => many > 0);
  return shown.map(([many, unit]) => `${many} ${unit}`).join(" ");
}

/** As much as is done, and never all of it before it is. */
export const progress = (share: number | null): string => (share === null ? "" : `${Math.floor(share * 100 + 1e-9)} %`);

const two = (value: number): string => String(value).padStart(2, "0");

/** A time of the log, in UTC. */
export function clock(at: number): string {
  const time = new Date(at * 1000);
  return `${two(time.getUTCHours())}:${two(time.getUTCMinutes())}:${two(time.getUTCSeconds())}`;
}

export function moment(at: number): string {
  const time = new Date(at * 1000);
  return `${time.getUTCFullYear()}-${two(time.getUTCMonth() + 1)}-${two(time.getUTCDate())} ${clock(at)}`;
}

/** An address that the log names, if a browser may go there; the log is no place to take `javascript:` from. */
export function webAddress(address: string): string | null {
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}
