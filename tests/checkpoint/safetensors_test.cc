// The safetensors reader refuses every kind of damage by name, and reads back what it wrote.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/crc32c.h"
#include "checkpoint/json.h"
#include "temp_folder.h"

namespace moetrain {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t n = header.size();
  std::string file(reinterpret_cast<const char*>(&n), 8);
  return file + header + std::string(data_bytes, 'd');
}

SafetensorsHeader parse(const std::string& header, size_t data_bytes) {
  return parse_safetensors(file_of(header, data_bytes), "x.safetensors");
}

TEST(Crc32c, CheckValueAndBothVersionsAgree) {
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c_portable(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc_text(0xe3069283u), "e3069283");
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes += static_cast<char>(i * 37);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const uint32_t all = crc32c(0, bytes.data(), n);
    EXPECT_EQ(all, crc32c_portable(0, bytes.data(), n));
    EXPECT_EQ(all, crc32c(crc32c(0, bytes.data(), n / 3), bytes.data() + n / 3, n - n / 3));
  }
}

TEST(JsonText, QuotesAndNumbers) {
  EXPECT_EQ(json_quote("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
  EXPECT_EQ(json_quote("\xc3\xa9\xff"), "\"\xc3\xa9\\ufffd\"");
  EXPECT_EQ(parse_json(json_quote("\xf0\x9f\x98\x80\r\x7f"), "t").string, "\xf0\x9f\x98\x80\r\x7f");
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(1.0 / 0.0), "null");
}

TEST(JsonText, RefusesDuplicatesDepthAndTrailingText) {
  EXPECT_REFUSED(parse_json(R"({"a":1,"b":{"a":2},"a":3})", "f"),
                 "f: not valid JSON: duplicate key \"a\"");
  EXPECT_REFUSED(parse_json(std::string(100, '[') + std::string(100, ']'), "f"),
                 "nested too deeply");
  EXPECT_REFUSED(parse_json("{} x", "f"), "not valid JSON");
  EXPECT_REFUSED(parse_json("\"\xff\"", "f"), "UTF-8");
  EXPECT_EQ(parse_json("18446744073709551615", "f").kind, Json::Kind::kNumber);
  EXPECT_EQ(parse_json("-9223372036854775808", "f").integer, INT64_MIN);
}

TEST(Safetensors, ValidFilesLoad) {
  EXPECT_TRUE(parse("{}", 0).tensors.empty());
  EXPECT_TRUE(parse(R"({"__metadata__":{}})", 0).tensors.empty());
  const auto header =
      parse(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
            R"("z":{"dtype":"BF16","shape":[0,7],"data_offsets":[4,4]},)"
            R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},"__metadata__":{"k":"v"}}   )",
            12);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "z");
  EXPECT_EQ(header.tensors[2].shape, Shape{2});
  EXPECT_EQ(header.metadata.at("k"), "v");
}

TEST(Safetensors, EveryKindOfDamageIsNamed) {
  const auto one = [](const std::string& entry) { return "{\"w\":" + entry + "}"; };
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_NO_THROW(parse(one(good), 8));
  EXPECT_REFUSED(parse_safetensors("short", "x.safetensors"), "x.safetensors: 5 bytes are too few");
  EXPECT_REFUSED(parse(one(good), 7), "tensor \"w\": data_offsets [0, 8] end beyond");
  EXPECT_REFUSED(parse(one(good), 9), "1 bytes after the last tensor");
  EXPECT_REFUSED(parse("[]", 0), "does not start with '{'");
  EXPECT_REFUSED(parse("{", 0), "not valid JSON");
  EXPECT_REFUSED(parse(one(good).substr(0, 20), 8), "not valid JSON");
  EXPECT_REFUSED(parse("{\"w\":" + good + ",\"w\":" + good + "}", 8), "duplicate key \"w\"");
  EXPECT_REFUSED(parse(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), 8),
                 "tensor \"w\": unknown dtype \"F33\"");
  EXPECT_REFUSED(parse(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8),
                 "needs 12 bytes but data_offsets [0, 8] hold 8");
  EXPECT_REFUSED(parse(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8),
                 "run backwards");
  EXPECT_REFUSED(parse(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8), "shape");
  EXPECT_REFUSED(parse(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), 8), "shape");
  EXPECT_REFUSED(parse(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"), 8),
                 "data_offsets");
  EXPECT_REFUSED(parse(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), 8),
                 "unknown key \"x\"");
  EXPECT_REFUSED(
      parse(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0),
      "overflows 64 bits");
  EXPECT_REFUSED(
      parse(one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]})"), 8),
      "shape");
  EXPECT_REFUSED(parse(one("3"), 0), "tensor \"w\"");
  EXPECT_REFUSED(parse(R"({"__metadata__":{"k":1}})", 0), "__metadata__ \"k\"");
  const auto two = [](int a, int b, int c, int d) {
    return cat(R"({"p":{"dtype":"U8","shape":[)", b - a, R"(],"data_offsets":[)", a, ",", b,
               R"(]},"q":{"dtype":"U8","shape":[)", d - c, R"(],"data_offsets":[)", c, ",", d,
               "]}}");
  };
  EXPECT_NO_THROW(parse(two(0, 4, 4, 8), 8));
  EXPECT_REFUSED(parse(two(0, 5, 4, 8), 8), "tensor \"q\": its data starts at 4, inside");
  EXPECT_REFUSED(parse(two(0, 3, 4, 8), 8), "tensor \"q\": its data starts at 4, leaving a hole");
  EXPECT_REFUSED(parse(two(1, 4, 4, 8), 8), "tensor \"p\": its data starts at 1, leaving a hole");
  std::string huge = file_of(one(good), 8);
  huge[7] = 1;  // header length of 2^56
  EXPECT_REFUSED(parse_safetensors(huge, "x"), "damaged safetensors header: it claims");
}

TEST(Safetensors, MutatedFilesNeverCrash) {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("y":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";
  const std::string good = file_of(header, 32);
  const CounterRandom random(1, "safetensors mutations");
  int accepted = 0;
  for (uint64_t round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const uint32_t edits = 1 + random.bits(round * 16) % 4;
    for (uint32_t e = 0; e < edits; ++e) {
      const size_t at = random.bits(round * 16 + 3 * e + 1) % bytes.size();
      const uint32_t value = random.bits(round * 16 + 3 * e + 2);
      switch (random.bits(round * 16 + 3 * e + 3) % 4) {
        case 0:
          bytes[at] = static_cast<char>(value);
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << value % 8));
          break;
        case 2:
          bytes.erase(at, 1 + value % 9);
          break;
        default:
          bytes.insert(at, bytes.substr(value % bytes.size(), value % 7));
          break;
      }
      if (bytes.empty()) bytes = "x";
    }
    try {
      const auto parsed = parse_safetensors(bytes, "f");
      ++accepted;
      uint64_t end = 0;
      for (const FileTensor& t : parsed.tensors) {
        ASSERT_EQ(t.begin, end);
        ASSERT_EQ(t.end - t.begin, static_cast<uint64_t>(numel(t.shape)) * size_of(t.type));
        end = t.end;
      }
      ASSERT_EQ(parsed.data_begin + end, bytes.size());
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 15000);
}

TEST(Safetensors, WritesAndReadsBack) {
  const TempFolder folder;
  std::vector<float> f(6);
  std::iota(f.begin(), f.end(), 0.5f);
  std::vector<uint16_t> half{float_to_bf16(1.5f), float_to_bf16(-3.0f)};
  std::vector<uint8_t> bytes{1, 2, 3};
  std::vector<int64_t> wide{-1, INT64_MAX};
  const std::string path = folder / "a.safetensors";
  save_safetensors(path,
                   {{"bytes", {bytes.data(), DType::kU8, {3}}},
                    {"half", {half.data(), DType::kBF16, {2}}},
                    {"f", {f.data(), DType::kF32, {2, 3}}},
                    {"empty", {nullptr, DType::kF32, {0, 3}}},
                    {"wide", {wide.data(), DType::kI64, {2}}}},
                   {{"format", "pt"}});
  const SafetensorsFile in(path);
  EXPECT_EQ(in.metadata().at("format"), "pt");
  EXPECT_EQ(in.tensors().size(), 5u);
  EXPECT_EQ(in.header_bytes().size() % 8, 0u);
  for (const FileTensor& t : in.tensors()) EXPECT_EQ(t.begin % size_of(t.type), 0u) << t.name;
  EXPECT_EQ(std::memcmp(in.data(in.at("f")), f.data(), 24), 0);
  EXPECT_EQ(std::memcmp(in.data(in.at("wide")), wide.data(), 16), 0);
  float read[2];
  in.read(in.at("half"), DType::kF32, read);
  EXPECT_EQ(read[0], 1.5f);
  EXPECT_EQ(read[1], -3.0f);
  EXPECT_REFUSED(in.at("halve"), "no tensor \"halve\" in this file; the nearest is \"half\"");
  EXPECT_REFUSED(in.read(in.at("wide"), DType::kF32, read), "cannot be read as f32");
  EXPECT_REFUSED(SafetensorsFile(folder / "none.safetensors"), "No such file");
  EXPECT_REFUSED(SafetensorsFile(folder.path()), "not a regular file");
}

TEST(Elements, SmallFloats) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc000), -2.0f);
  EXPECT_EQ(f16_to_float(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(f16_to_float(0x7c00)));
  EXPECT_TRUE(std::isnan(f16_to_float(0x7e01)));
  EXPECT_EQ(f8_e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(f8_e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(f8_e4m3_to_float(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(f8_e4m3_to_float(0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(f8_e4m3_to_float(0xff)));
  EXPECT_EQ(f8_e5m2_to_float(0x3c), 1.0f);
  EXPECT_EQ(f8_e5m2_to_float(0x7b), 57344.0f);
}

TEST(Elements, DoubleToBf16RoundsOnce) {
  // Just above the midpoint of 1 and the next bf16: through float it would become the midpoint
  // and then round to even, down.
  const double value = 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  uint16_t out;
  convert_elements(FileType::kF64, &value, DType::kBF16, &out, 1);
  EXPECT_EQ(bf16_to_float(out), 1.0f + std::ldexp(1.0f, -7));
  // Every bf16 survives a round trip through float, also from an odd address.
  std::vector<uint16_t> codes(65536), back(65536);
  std::iota(codes.begin(), codes.end(), uint16_t{0});
  std::vector<char> wide(4 * codes.size() + 1);
  convert_elements(FileType::kBF16, codes.data(), DType::kF32, wide.data() + 1, 65536);
  convert_elements(FileType::kF32, wide.data() + 1, DType::kBF16, back.data(), 65536);
  for (size_t i = 0; i < codes.size(); ++i) {
    const bool is_nan = std::isnan(bf16_to_float(codes[i]));
    ASSERT_TRUE(is_nan ? std::isnan(bf16_to_float(back[i])) : codes[i] == back[i]) << codes[i];
  }
  EXPECT_FALSE(can_convert(FileType::kI64, DType::kI32));
  EXPECT_FALSE(can_convert(FileType::kF32, DType::kI32));
}

TEST(Elements, DequantisesBlocks) {
  // 3 x 5 in blocks of 2: tiles 2 x 3.
  const std::vector<uint8_t> codes(15, 0x38);
  const std::vector<float> scale{1, 2, 3, 4, 5, 6};
  std::vector<float> out(15);
  dequantize_f8_blocks(codes.data(), scale.data(), 3, 5, 2, out.data());
  EXPECT_EQ(out, (std::vector<float>{1, 1, 2, 2, 3, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6}));
}

}  // namespace
}  // namespace moetrain
