//! step-runner: runs the steps of a CI job inside its environment and loses nothing.

