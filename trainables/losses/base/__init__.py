"""Parts that losses share: proxies, pairs, scales, the softmax head and Proxy Synthesis."""
