//! Checks of the whole tree: its layout, statements, error codes and database privileges.

pub mod circles;
mod codes;
pub mod privileges;
pub mod statements;
pub mod tidy;
mod words;
