//! The documentation and the examples match the program.

pub mod architecture;
pub mod docs;
pub mod docs_page;
pub mod examples;
pub mod greeting;
pub mod openapi;
pub mod plain;
pub mod readme;
