// `moetrain config`: check, show and describe configuration files.
#include <iostream>

#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "config/schema.h"
#include "config/validate.h"

namespace moetrain {

namespace {

Config load_resolved(const ConfigCommand& command, int64_t* world) {
  Config config = load_config(command.source.file, command.source.sets);
  *world = command.world_size > 0 ? command.world_size : smallest_world_size(config);
  resolve(config, *world);
  return config;
}

}  // namespace

int run_config_check(const ConfigCommand& command) {
  int64_t world = 0;
  const Config config = load_resolved(command, &world);
  validate(config, world);
  validate_training(config);
  std::cout << command.source.file << ": good for " << world << (world == 1 ? " rank" : " ranks")
            << "\n";
  return 0;
}

int run_config_show(const ConfigCommand& command) {
  int64_t world = 0;
  const Config config = load_resolved(command, &world);
  std::cout << show_config(config);
  return 0;
}

int run_config_schema() {
  std::cout << config_schema();
  return 0;
}

}  // namespace moetrain
