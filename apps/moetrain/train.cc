// `moetrain train`: joins the job and trains.
#include "base/log.h"
#include "commands.h"
#include "config/load.h"
#include "fabric_options.h"
#include "train/fabric.h"
#include "train/trainer.h"

namespace moetrain {

int run_train(const TrainArguments& command) {
  const Config config = load_config(command.source.file, command.source.sets);
  return run_on_fabric(fabric_options(config), [&](Fabric& fabric) {
    return train(config, fabric, {command.resume, command.steps});
  });
}

}  // namespace moetrain
