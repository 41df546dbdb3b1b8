//! A table as text, as Markdown and as HTML.

use std::fmt;

/// A header, and rows of as many cells.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table's lines as text, each with a note behind it, which is long and no column.
    pub fn with_notes(&self, notes: &[String]) -> String {
        let rows = self.to_string();
        let lines = rows.lines().zip(notes);
        lines
            .map(|(row, note)| format!("{}\n", format!("{row}  {note}").trim_end()))
            .collect()
    }

    /// Text with aligned columns, so many of them to the left and the others to the right.
    pub fn aligned(&self, left: usize) -> String {
        let rows = || [&self.header].into_iter().chain(&self.rows);
        let width = |column: usize| {
            let cells = rows().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(i, (cell, &width))| match i < left {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
            let cells: Vec<String> = cells.collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        rows().map(line).collect()
    }

    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells = cells.iter().map(|cell| cell.replace('|', "\\|"));
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let rule = format!("|{}\n", "---|".repeat(self.header.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.header) + &rule + &rows
    }

    pub fn html(&self) -> String {
        let line = |tag: &str, cells: &[String]| {
            let cells = cells.iter().map(|cell| escape(cell));
            let cells = cells.map(|cell| format!("<{tag}>{cell}</{tag}>"));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = self.rows.iter().map(|row| line("td", row)).collect();
        format!(
            "<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
            line("th", &self.header)
        )
    }
}

/// Text with aligned columns: the first to the left, the others to the right.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.aligned(1))
    }
}

/// Text that may stand in HTML and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
