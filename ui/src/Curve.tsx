const WIDTH = 72;
const HEIGHT = 18;

/** A curve of the last values, from zero. The number beside it says the latest one. */
export function Curve({ values }: { values: number[] }) {
  if (values.length < 2) return null;
  const most = Math.max(...values, 1);
  const points = values.map(
    (value, index) => `${((index / (values.length - 1)) * WIDTH).toFixed(1)},${(HEIGHT - 1 - (value / most) * (HEIGHT - 2)).toFixed(1)}`,
  );
  return (
    <svg className="curve" width={WIDTH} height={HEIGHT} aria-hidden="true">
      <polyline points={points.join(" ")} fill="none" stroke="currentColor" strokeWidth="1.5" />
    </svg>
  );
}
