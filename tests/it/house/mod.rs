//! Checks of the whole tree: its layout, statements, error codes and database privileges.

pub mod codes;
pub mod privileges;
pub mod statements;
pub mod tidy;
