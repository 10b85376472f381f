//! `kill -9` at each point
