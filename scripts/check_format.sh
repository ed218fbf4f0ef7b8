#!/bin/bash
# Formatting: rooms listed here are exactly as clang-format writes them; all others have no tabs
# and no blanks at line ends. --fix rewrites the listed rooms.
cd "$(dirname "$0")/.." || exit 1
strict=(apps lib/config lib/checkpoint tests/checkpoint tests/config tests/data_room tests/train_metrics)
sources() { find "$@" -type f \( -name '*.cc' -o -name '*.h' \) | sort; }
bad=0
if command -v clang-format > /dev/null; then
  mapfile -t files < <(sources "${strict[@]}")
  if [ "${1:-}" = --fix ]; then
    clang-format -i "${files[@]}"
    exit
  fi
  clang-format --dry-run -Werror "${files[@]}" || bad=1
else
  echo "clang-format is not installed: only tabs and blanks are checked"
fi
while IFS= read -r file; do
  awk -v file="$file" '
    /\t/ { print file ":" NR ": a tab"; bad = 1 }
    / $/ { print file ":" NR ": blanks at the end"; bad = 1 }
    END { exit bad }' "$file" || bad=1
done < <(sources apps lib tests)
exit $bad
