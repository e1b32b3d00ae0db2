// What this processor can run.
extern "C" {
#if defined(__x86_64__) || defined(__i386__)
int hyperadam_supports_avx512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"); }
int hyperadam_supports_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
int hyperadam_supports_avx512() { return 0; }
int hyperadam_supports_avx2() { return 0; }
#endif
}
