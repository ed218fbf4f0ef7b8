#!/bin/bash
# No source file above 500 lines, no header above 200: what is longer is two things.
cd "$(dirname "$0")/.." || exit 1
bad=0
while IFS= read -r file; do
  lines=$(wc -l < "$file")
  case "$file" in
    *.h) most=200 ;;
    *) most=500 ;;
  esac
  if [ "$lines" -gt "$most" ]; then
    echo "$file: $lines lines, at most $most"
    bad=1
  fi
done < <(find apps lib tests scripts -type f \( -name '*.cc' -o -name '*.h' -o -name '*.sh' -o -name '*.py' \))
exit $bad
