//! A new migration rebuilds the program: `sqlx::migrate!` embeds the directory, which Cargo would
//! not watch by itself.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
