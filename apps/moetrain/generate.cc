// `moetrain generate`: text from a checkpoint, printed as it comes.
#include "train/generate.h"

#include <cstdio>

#include "commands.h"
#include "fabric_options.h"

namespace moetrain {

int run_generate(const GenerateCommand& c) {
  const WeightSource weights = find_weights(c.checkpoint, c.source.file, c.source.sets);
  FabricOptions options = fabric_options(weights.config);
  options.log_level = Severity::kWarning;
  return run_on_fabric(options, [&](Fabric& fabric) {
    GenerateOptions g;
    g.prompt = c.prompt;
    g.tokenizer = c.tokenizer;
    g.max_tokens = c.max_tokens;
    g.temperature = c.temperature;
    g.top_p = c.top_p;
    g.seed = static_cast<uint64_t>(c.seed);
    generate_text(weights, fabric, g, [](const std::string& text) {
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    });
    std::fputc('\n', stdout);
    return 0;
  });
}

}  // namespace moetrain
