//! Writing results to stdout, as tables or as they are.

use std::{
    io::{self, ErrorKind, Write},
    os::fd::AsFd,
};

use anyhow::Context;
use comfy_table::{
    Cell, CellAlignment, ColumnConstraint::LowerBoundary, ContentArrangement, Row, Table, Width,
    presets,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use tokio::sync::oneshot;

/// The reader of stdout has closed it (`| head`), which is not a failure.
#[derive(Debug, thiserror::Error)]
#[error("stdout was closed")]
pub(super) struct Closed;

/// Writes all of it and flushes.
pub(super) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        written => written.context("cannot write to stdout"),
    }
}

/// Returns when the reader of stdout has closed it: a command that waits for records would
/// otherwise notice only when it prints the next one.
pub(super) async fn closed() -> Closed {
    let (sender, hung_up) = oneshot::channel();
    std::thread::spawn(move || {
        let stdout = io::stdout();
        // no events requested: poll always reports errors and hang-ups, and only these end it
        let mut watched = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        while poll(&mut watched, PollTimeout::NONE) == Err(nix::errno::Errno::EINTR) {}
        let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
        if watched[0].revents().is_some_and(|events| events.intersects(gone)) {
            let _ = sender.send(());
        }
    });
    match hung_up.await {
        Ok(()) => Closed,
        // stdout is a file or a device that never hangs up
        Err(_) => std::future::pending().await,
    }
}

/// A column of a table: its heading, and the cell of an item.
pub(super) type Column = (&'static str, fn(&Value) -> Cell);

/// A table for a terminal, of which no line is wider.
pub(super) fn table(columns: &[Column], items: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|(heading, _)| heading));
    let row = |item| columns.iter().map(|(_, cell)| cell(item)).collect::<Vec<Cell>>();
    table.add_rows(items.iter().map(row));
    fit(&mut table);
    table
}

/// Lets the cells of a table wider than the terminal wrap, between words. Words are broken only if
/// they alone are wider, and then the longest, such as ids.
fn fit(table: &mut Table) {
    // a terminal that does not know its size says 0
    let Some(width @ 1..) = table.width() else { return };
    let mut words = vec![0; table.column_count()];
    for row in table.header().into_iter().chain(table.row_iter()) {
        for (longest, word) in words.iter_mut().zip(longest_words(row)) {
            *longest = word.max(*longest);
        }
    }
    let padding: usize =
        table.column_iter().map(|column| usize::from(column.padding_width())).sum();
    let fits = |widths: &[u16], cap: u16| {
        let capped = widths.iter().map(|one| usize::from(cap.min(*one)));
        padding + capped.sum::<usize>() <= width.into()
    };
    if fits(&table.column_max_content_widths(), u16::MAX) {
        return;
    }
    table.set_content_arrangement(ContentArrangement::Dynamic);
    let cap = (1..=width).rev().find(|cap| fits(&words, *cap)).unwrap_or(1);
    for (column, word) in table.column_iter_mut().zip(words) {
        let least = word.min(cap) + column.padding_width();
        column.set_constraint(LowerBoundary(Width::Fixed(least)));
    }
}

fn longest_words(row: &Row) -> impl Iterator<Item = u16> {
    row.cell_iter().map(|cell| {
        let content = cell.content();
        let widths = content.split_whitespace().map(|word| word.chars().count());
        u16::try_from(widths.max().unwrap_or_default()).unwrap_or(u16::MAX)
    })
}

pub(super) fn cell(value: &Value) -> Cell {
    match value {
        Value::String(text) => Cell::new(text),
        number => Cell::new(number).set_alignment(CellAlignment::Right),
    }
}

pub(super) fn cell_or_blank(value: &Value) -> Cell {
    if value.is_null() { Cell::new("") } else { cell(value) }
}

/// The items of an array; none of another value.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COLUMNS: &[Column] = &[
        ("id", |item| cell(&item["id"])),
        ("high watermark", |item| cell(&item["n"])),
        ("what it is", |item| cell(&item["text"])),
    ];

    fn lines(width: u16) -> Vec<String> {
        let item = json!({"id": "019aa5b6-5c00-7000-8000-000000000004", "n": 17,
            "text": "a text of several words that needs more than one line"});
        let mut table = table(COLUMNS, &[item]);
        table.set_width(width);
        fit(&mut table);
        table.lines().collect()
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [200, 100, 80, 60, 40, 20] {
            let lines = lines(width);
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width.into()), "{width}: {lines:#?}");
        }
        assert_eq!(lines(200).len(), 2);
    }

    #[test]
    fn words_stay_whole_where_they_fit() {
        for width in [200, 100, 80, 65] {
            let text = lines(width).join("\n");
            assert!(text.contains("019aa5b6-5c00-7000-8000-000000000004"), "{text}");
        }
        for width in [50, 40] {
            let text = lines(width).join("\n");
            assert!(text.contains("watermark") && text.contains("several"), "{text}");
        }
    }
}
