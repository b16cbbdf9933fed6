// Tables travel as columns, which are shorter than rows: { columns: { name: [values] }, texts: { name: [text] } }.
// A column with texts holds positions in them.
export function rowsOf({ columns, texts = {} }) {
  const names = Object.keys(columns);
  const length = names.length ? columns[names[0]].length : 0;
  return Array.from({ length }, (_, i) => {
    const row = {};
    for (const name of names) {
      const value = columns[name][i];
      row[name] = name in texts ? texts[name][value] : value;
    }
    return row;
  });
}
