//! What people read and run is what the program does.

pub mod architecture;
pub mod docs;
pub mod docs_page;
pub mod examples;
pub mod greeting;
pub mod openapi;
