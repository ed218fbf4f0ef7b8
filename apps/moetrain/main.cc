// moetrain: one message and one exit code for whatever happens.
#include <exception>
#include <iostream>

#include "base/error.h"
#include "cli.h"
#include "first_process.h"

int main(int argc, char** argv) {
  using namespace moetrain;
  try {
    return run_command_line(argc, argv);
  } catch (const UserError& e) {
    if (is_first_process()) std::cerr << e.what() << std::endl;
    return e.exit_code();
  } catch (const std::exception& e) {
    std::cerr << "moetrain: " << e.what() << std::endl;
    return kExitFailure;
  }
}
