interface Props {
  columns: string[];
  rows: (string | null)[][];
  label: string;
  /** Follows a record, by its place among the rows. */
  choose?: (index: number) => void;
}

/** Records as a table that scrolls; with a button per record where it can be followed. */
export function Records({ columns, rows, label, choose }: Props) {
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {choose && <th scope="col">made from</th>}
            {columns.map((name, place) => (
              <th key={place} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {choose && (
                <td>
                  <button type="button" className="link" aria-label={`What record ${index + 1} was made from`} onClick={() => choose(index)}>
                    ←
                  </button>
                </td>
              )}
              {row.map((value, place) => (
                <td key={place}>{value}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
