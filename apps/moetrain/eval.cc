// `moetrain eval`: validation loss of given weights.
#include <cstdio>

#include "commands.h"
#include "config/load.h"
#include "fabric_options.h"
#include "train/evaluate.h"

namespace moetrain {

int run_eval(const EvalCommand& c) {
  const WeightSource weights = find_weights(c.checkpoint, c.source.file, c.source.sets);
  return run_on_fabric(fabric_options(weights.config), [&](Fabric& fabric) {
    EvaluateOptions options;
    options.split = c.split == "train"  ? Split::kTrain
                    : c.split == "test" ? Split::kTest
                                        : Split::kValidation;
    options.steps = c.steps;
    const EvaluateResult result = evaluate_weights(weights, fabric, options);
    if (fabric.rank() == 0) {
      std::fputs((c.json ? result.json() + "\n" : result.text()).c_str(), stdout);
      std::fflush(stdout);
    }
    return 0;
  });
}

}  // namespace moetrain
