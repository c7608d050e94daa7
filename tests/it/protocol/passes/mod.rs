//! What a batch decides and writes, whatever else it contains, and whatever has happened to the log
//! meanwhile.

mod grown;
mod histories;
mod pairs;
mod tails;
