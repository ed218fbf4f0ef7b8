// The command line as a tree of CLI11 apps; the only place that knows CLI11 beside main's call.
#pragma once

namespace moetrain {

/// Parses the arguments and runs the chosen command. Returns the exit code; throws what commands
/// throw.
int run_command_line(int argc, char** argv);

}  // namespace moetrain
