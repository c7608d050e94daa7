//! Writing results to stdout, as tables or as they are.

use std::{
    io::{self, ErrorKind, Write},
    os::fd::AsFd,
};

use anyhow::Context;
use comfy_table::{Cell, CellAlignment, Table, presets};
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

/// A table for a terminal.
pub(super) fn table(columns: &[Column], items: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|(heading, _)| heading));
    table.add_rows(items.iter().map(|item| row(columns, item)));
    table
}

pub(super) fn row(columns: &[Column], item: &Value) -> Vec<Cell> {
    columns.iter().map(|(_, cell)| cell(item)).collect()
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
