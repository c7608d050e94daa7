//! What holds for the whole tree: its layout, its statements, its error codes, its database privileges.

pub mod circles;
mod codes;
pub mod privileges;
pub mod statements;
pub mod tidy;
