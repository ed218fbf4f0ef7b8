// Looking into parsed documents.
#include "config/node.h"

#include "base/text.h"

namespace moetrain {

const YamlNode* YamlNode::find(const std::string& key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

YamlNode* YamlNode::find(const std::string& key) {
  return const_cast<YamlNode*>(static_cast<const YamlNode*>(this)->find(key));
}

std::string YamlNode::text() const {
  std::string out;
  switch (kind) {
    case kNull:
      return "null";
    case kScalar:
      out = quoted ? cat('"', scalar, '"') : scalar;
      break;
    case kList: {
      std::vector<std::string> parts;
      for (const YamlNode& item : items) {
        parts.push_back(item.text());
        if (parts.size() > 8) break;
      }
      out = cat("[", join(parts, ", "), "]");
      break;
    }
    case kMap: {
      std::vector<std::string> parts;
      for (const Entry& entry : entries) {
        parts.push_back(cat(entry.key, ": ", entry.value.text()));
        if (parts.size() > 8) break;
      }
      out = cat("{", join(parts, ", "), "}");
      break;
    }
  }
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  if (out.size() > 60) {
    out.resize(57);
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xC0) out.pop_back();
    out += "...";
  }
  return out;
}

const char* YamlNode::kind_name() const {
  switch (kind) {
    case kNull:
      return "nothing";
    case kScalar:
      return "a single value";
    case kList:
      return "a list";
    case kMap:
      return "a map";
  }
  return "";
}

}  // namespace moetrain
