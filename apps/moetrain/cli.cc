// Every subcommand and option with its help, unit and default.
#include "cli.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "first_process.h"

namespace moetrain {

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done, 2 refused (command line, config, data, checkpoint, topology), 3 stopped\n"
    "because the numbers went wrong, 75 stopped on a signal or time limit after saving (start it\n"
    "again to go on), 1 anything else.";

/// A check that says in words what number is wanted (the library's own print the largest double).
CLI::Validator number_check(bool (*good)(double), const char* wish, const char* shown) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool number = !text.empty() && *end == '\0' && std::isfinite(value);
        return number && good(value) ? "" : cat("must be a number ", wish, ", not ", text);
      },
      shown);
}
CLI::Validator above_zero() {
  return number_check([](double v) { return v > 0; }, "above 0", "above 0");
}
CLI::Validator not_negative() {
  return number_check([](double v) { return v >= 0; }, "not below 0", "0 or more");
}
CLI::Validator share() {
  return number_check([](double v) { return v > 0 && v <= 1; }, "above 0 and at most 1", "0 to 1");
}

/// The tree of commands, and what the chosen one runs.
class CommandLine {
 public:
  CommandLine() : app_("Pretrains DeepSeek-V3-style mixture-of-experts models.", "moetrain") {
    app_.require_subcommand(1);
    app_.footer(kFooter);
    app_.option_defaults()->always_capture_default();
    app_.get_formatter()->column_width(34);
    app_.set_help_all_flag("--help-all", "Help of every command");
    add_train();
    add_plan();
    add_eval();
    add_generate();
    add_data();
    add_checkpoint();
    add_config();
    add_bench();
  }

  int run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp& e) {
      return speak(e);
    } catch (const CLI::CallForAllHelp& e) {
      return speak(e);
    } catch (const CLI::ParseError& e) {
      throw UserError(explain(e, argc, argv));
    }
    return chosen_();
  }

 private:
  int speak(const CLI::ParseError& e) {
    if (is_first_process()) app_.exit(e);
    return kExitDone;
  }

  CLI::App* command(CLI::App* parent, const char* name, const char* help,
                    std::function<int()> run) {
    CLI::App* sub = parent->add_subcommand(name, help);
    if (run) {
      sub->callback([this, run] { chosen_ = run; });
    } else {
      sub->require_subcommand(1);
    }
    return sub;
  }
  void sets(CLI::App* sub, ConfigSource& source) {
    sub->add_option("--set", source.sets, "key.path=value over the file; may be repeated")
        ->type_name("KEY=VALUE")
        ->default_str("")
        ->allow_extra_args(false);
  }
  void config(CLI::App* sub, ConfigSource& source, bool required) {
    CLI::Option* file = sub->add_option("-c,--config", source.file, "YAML file of the run");
    file->type_name("FILE");
    if (required) file->required();
    sets(sub, source);
  }

  void add_train() {
    auto* sub = command(&app_, "train", "Pretrain; also under mpirun or srun",
                        [this] { return run_train(train_); });
    config(sub, train_.source, true);
    sub->add_option("--resume", train_.resume,
                    "auto (newest checkpoint if there is one), none, or a PATH; "
                    "without it checkpoint.resume of the config decides")
        ->type_name("auto|none|PATH");
    sub->add_option("--steps", train_.steps, "Stop and save after this step of the run [steps]")
        ->type_name("N")
        ->check(above_zero());
  }

  void add_plan() {
    auto* sub = command(&app_, "plan",
                        "Compile for any number of ranks without devices: memory, traffic, time",
                        [this] { return run_plan(plan_); });
    config(sub, plan_.source, true);
    sub->add_option("--world-size", plan_.world_size,
                    "Ranks of the job; without it the fewest the config allows [ranks]")
        ->type_name("N")
        ->check(above_zero());
    sub->add_option("--rank", plan_.rank, "The rank that is shown [0 ... ranks - 1]")
        ->check(not_negative());
    sub->add_option("--machine", plan_.machine,
                    "Speeds and links; without it compute.machine, else built-in numbers")
        ->type_name("FILE");
    sub->add_flag("--explain", plan_.explain,
                  "Who decided each layout, and what moving data costs");
    sub->add_option("--diff", plan_.diff, "Show what this other config changes")->type_name("YAML");
    sub->add_flag("--tape", plan_.tape, "Print the rank's whole tape");
    sub->add_flag("--search", plan_.search, "Try other layouts on so many ranks, best first");
    sub->add_option("--trace", plan_.trace,
                    "Write the predicted step for chrome://tracing, Perfetto")
        ->type_name("FILE");
    sub->add_flag("--json", plan_.json, "Print the report as JSON");
  }

  void add_eval() {
    auto* sub =
        command(&app_, "eval",
                "Validation loss of a checkpoint or a Hugging Face folder; also under mpirun",
                [this] { return run_eval(eval_); });
    config(sub, eval_.source, false);
    sub->add_option("--checkpoint", eval_.checkpoint,
                    "Run, checkpoints or step folder, or a Hugging Face folder; without it the "
                    "newest checkpoint of the config's run")
        ->type_name("PATH");
    sub->add_option("--split", eval_.split, "Part of the data")
        ->check(CLI::IsMember({"train", "validation", "test"}));
    sub->add_option("--steps", eval_.steps, "Global batches; 0: train.validation_steps [batches]")
        ->check(not_negative());
    sub->add_flag("--json", eval_.json, "Print JSON");
  }

  void add_generate() {
    auto* sub = command(&app_, "generate", "Sample text from a checkpoint, in one process",
                        [this] { return run_generate(generate_); });
    config(sub, generate_.source, false);
    sub->add_option("--checkpoint", generate_.checkpoint,
                    "Run, checkpoints or step folder; without it the newest of the config's run")
        ->type_name("PATH");
    sub->add_option("--prompt", generate_.prompt, "Text to go on from");
    sub->add_option("--max-tokens", generate_.max_tokens, "Stop after so many [tokens]")
        ->check(not_negative());
    sub->add_option("--temperature", generate_.temperature,
                    "Divides the logits; 0 takes the likeliest token")
        ->check(not_negative());
    sub->add_option("--top-p", generate_.top_p, "Share of probability to sample from (0 ... 1]")
        ->check(share());
    sub->add_option("--seed", generate_.seed, "Of the random numbers");
    sub->add_option("--tokenizer", generate_.tokenizer,
                    "bytes or a tokenizer.json; without it the checkpoint's own")
        ->type_name("FILE");
  }

  void corpus(CLI::App* sub, DataCommand& d) {
    sub->add_option("inputs", d.inputs, "Text or JSONL files, or folders of them")
        ->type_name("FILE...")
        ->required();
    sub->add_option("--format", d.format, "auto: JSONL by .jsonl or .ndjson")
        ->check(CLI::IsMember({"auto", "text", "jsonl"}));
    sub->add_option("--key", d.key, "JSONL: field of the text");
    sub->add_option("--documents", d.documents,
                    "What ends a document of plain text: file, blank-lines, line=TEXT")
        ->check([](const std::string& value) {
          return value == "file" || value == "blank-lines" || value.starts_with("line=")
                     ? std::string()
                     : "is one of file, blank-lines, line=TEXT";
        });
    sub->add_option("--eod-token", d.eod_token,
                    "End-of-document token; without it the tokenizer's own, or <|endoftext|>");
  }

  void add_data() {
    auto* data = command(&app_, "data", "Build and look at datasets and tokenizers", {});
    auto* build = command(data, "build", "Text or JSONL to PREFIX.bin and PREFIX.idx",
                          [this] { return run_data_build(build_); });
    corpus(build, build_);
    build->add_option("-o,--output", build_.output, "Where to write")
        ->type_name("PREFIX")
        ->required();
    build
        ->add_option("--tokenizer", build_.tokenizer,
                     "bytes or a tokenizer.json; without it data.tokenizer of --config, else bytes")
        ->type_name("FILE");
    build->add_flag("--no-eod", build_.no_eod,
                    "Do not end documents with the end-of-document token");
    build->add_option("--threads", build_.threads, "0: all cores [threads]");
    config(build, build_.source, false);

    auto* inspect = command(data, "inspect", "Check datasets completely and describe them",
                            [this] { return run_data_inspect(inspect_); });
    inspect->add_option("prefixes", inspect_.inputs, "Datasets, without .bin")
        ->type_name("PREFIX...")
        ->required();
    inspect
        ->add_option("--tokenizer", inspect_.tokenizer, "Shows text as well, checks ids against it")
        ->type_name("FILE");
    inspect->add_option("--vocab-size", inspect_.vocab_size,
                        "Ids must be below; 0: the tokenizer's [ids]");
    config(inspect, inspect_.source, false);

    auto* train = command(data, "train-tokenizer", "Learn a byte-level BPE vocabulary from text",
                          [this] { return run_data_train_tokenizer(tokenizer_); });
    tokenizer_.vocab_size = 4096;
    corpus(train, tokenizer_);
    train->add_option("-o,--output", tokenizer_.output, "The tokenizer.json to write")
        ->type_name("FILE")
        ->required();
    train->add_option("--vocab-size", tokenizer_.vocab_size, "Bytes, merges, end of document [ids]")
        ->check(above_zero());
    train->add_option("--min-count", tokenizer_.min_count, "Pairs seen less often are not merged");
  }

  void checkpoint(CLI::App* sub, const char* help) {
    sub->add_option("path", checkpoint_.path, help)->type_name("PATH");
    config(sub, checkpoint_.source, false);
  }

  void add_checkpoint() {
    auto* group =
        command(&app_, "checkpoint", "Look at, verify, export and import checkpoints", {});
    const char* which = "Run, checkpoints or step folder; without it the run of --config";
    checkpoint(command(group, "inspect", "Step, metadata and every tensor",
                       [this] { return run_checkpoint_inspect(checkpoint_); }),
               which);
    checkpoint(command(group, "verify", "Read every byte and compare checksums",
                       [this] { return run_checkpoint_verify(checkpoint_); }),
               which);
    auto* out = command(group, "export", "Write a folder other programs read",
                        [this] { return run_checkpoint_export(checkpoint_); });
    checkpoint(out, which);
    out->add_option("--to", checkpoint_.foreign, "Format (hf) and the folder to make")
        ->default_str("")
        ->type_name("hf DIR")
        ->required();
    out->add_option("--dtype", checkpoint_.dtype, "Of matrices; norms and router stay fp32")
        ->check(CLI::IsMember({"bf16", "fp32"}));
    auto* in = command(group, "import", "Make a checkpoint of step 0 from published weights",
                       [this] { return run_checkpoint_import(checkpoint_); });
    checkpoint(in, "Run folder to import into; without it run.output_dir of --config");
    in->add_option("--from", checkpoint_.foreign, "Format (hf) and the folder to read")
        ->default_str("")
        ->type_name("hf DIR")
        ->required();
  }

  void add_config() {
    auto* group = command(&app_, "config", "Check, show and describe configuration files", {});
    auto* check = command(group, "check", "Every fault with file, line and remedy",
                          [this] { return run_config_check(config_); });
    auto* show = command(group, "show", "Every value with where it comes from",
                         [this] { return run_config_show(config_); });
    for (CLI::App* sub : {check, show}) {
      sub->add_option("file,-c,--config", config_.source.file, "YAML file")
          ->type_name("FILE")
          ->required();
      sub->add_option("--world-size", config_.world_size,
                      "Ranks of the job; without it the fewest the file allows [ranks]")
          ->type_name("N")
          ->check(above_zero());
      sets(sub, config_.source);
    }
    command(group, "schema", "JSON Schema of the YAML file, for editors",
            [] { return run_config_schema(); });
  }

  void add_bench() {
    auto* sub =
        command(&app_, "bench", "Measure this machine and training steps; also under mpirun",
                [this] { return run_bench(bench_); });
    sub->add_option("what", bench_.what, "all: everything but step")
        ->check(CLI::IsMember(
            {"all", "kernels", "machine", "collectives", "dispatch", "overlap", "step"}));
    sub->add_option("-o,--write-machine", bench_.machine_file,
                    "Machine file to write (all, machine), for plan and compute.machine")
        ->type_name("FILE");
    sub->add_option("--threads", bench_.threads,
                    "Of a rank; 0: its share of the cores (step: compute.threads) [threads]")
        ->check(not_negative());
    sub->add_option("--ranks-per-node", bench_.ranks_per_node,
                    "Take so many ranks for a node; 0: by host (step: parallel.ranks_per_node)")
        ->check(not_negative());
    sub->add_option("--filter", bench_.filter, "kernels: only those whose name contains this");
    sub->add_option("--seconds", bench_.seconds, "kernels: time for each case [s]")
        ->check(above_zero());
    sub->add_option("--repeats", bench_.repeats, "collectives, dispatch: runs behind a median")
        ->check(above_zero());
    sub->add_option("--tokens", bench_.tokens, "dispatch: of one rank")->check(above_zero());
    sub->add_option("--hidden", bench_.hidden, "dispatch: values of a token's row")
        ->check(above_zero());
    sub->add_option("--experts", bench_.experts, "dispatch: of all ranks")->check(above_zero());
    sub->add_option("--top-k", bench_.top_k, "dispatch: experts of a token")->check(above_zero());
    sub->add_option("--precision", bench_.precision, "dispatch: of a row")
        ->check(CLI::IsMember({"bf16", "fp32"}));
    sub->add_option("--transport", bench_.transport, "dispatch: only this one")
        ->check(CLI::IsMember({"alltoall", "alltoall_once", "allgather", "dedup"}));
    sub->add_option("--routing", bench_.routing, "dispatch: only this one")
        ->check(CLI::IsMember({"even", "uniform", "skewed", "first"}));
    config(sub, bench_.source, false);
    sub->add_option("--steps", bench_.steps, "step: timed steps of each variant [steps]")
        ->check(above_zero());
    sub->add_option("--against", bench_.against,
                    "step: a variant: key.path=value, several with ';' between them, or reference; "
                    "may be repeated; without it compute.fusion=false")
        ->type_name("SETTINGS")
        ->default_str("")
        ->allow_extra_args(false);
    sub->add_flag("--json", bench_.json, "step: print JSON");
  }

  /// What was wrong, with the nearest name that exists at that place.
  std::string explain(const CLI::ParseError& e, int argc, char** argv) {
    CLI::App* at = &app_;
    int i = 1;
    for (; i < argc; ++i) {
      CLI::App* next = nullptr;
      for (CLI::App* sub : at->get_subcommands({})) {
        if (sub->get_name() == argv[i]) next = sub;
      }
      if (next == nullptr) break;
      at = next;
    }
    std::string path = "moetrain";
    for (int k = 1; k < i; ++k) path += cat(" ", argv[k]);
    const std::string usage = cat("; see ", path, " --help");
    if (!at->get_subcommands({}).empty()) {
      std::vector<std::string> names;
      for (const CLI::App* sub : at->get_subcommands({})) names.push_back(sub->get_name());
      if (i >= argc) return cat(path, ": say what to do: one of ", join(names, ", "), usage);
      if (argv[i][0] == '-') return cat(path, ": unknown option ", argv[i], usage);
      return cat(path, ": unknown command '", argv[i], "'", guess(argv[i], names), "; there are ",
                 join(names, ", "), usage);
    }
    std::vector<std::string> names;
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    for (; i < argc; ++i) {
      std::string word = argv[i];
      word = word.substr(0, word.find('='));
      if (word.size() < 3 || !word.starts_with("--") || word == "--help-all") continue;
      if (at->get_option_no_throw(word) == nullptr) {
        return cat(path, ": unknown option ", word, guess(word, names), usage);
      }
    }
    return cat(path, ": ", e.what(), usage);
  }
  static std::string guess(const std::string& word, const std::vector<std::string>& names) {
    const std::string near = nearest(word, names);
    return near.empty() ? "" : cat(" (did you mean ", near, "?)");
  }

  CLI::App app_;
  std::function<int()> chosen_;
  TrainArguments train_;
  PlanCommand plan_;
  EvalCommand eval_;
  GenerateCommand generate_;
  DataCommand build_, inspect_, tokenizer_;
  CheckpointCommand checkpoint_;
  ConfigCommand config_;
  BenchCommand bench_;
};

}  // namespace

int run_command_line(int argc, char** argv) { return CommandLine().run(argc, argv); }

}  // namespace moetrain
