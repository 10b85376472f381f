// A vendor that counts nothing: aimock, which others wrote, reports a usage of 0 or none, gives numbers where base64 was asked
// for, and JSON where subtitles were. `node careless.mjs PORT`

import { LLMock } from '@copilotkit/aimock';

const vendor = new LLMock({ port: Number(process.argv[2]), host: '127.0.0.1', logLevel: 'silent' });
const any = /[^]*/;
const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 };
vendor.onRerank(any, [{ index: 0, relevance_score: 0.5 }]);
vendor.onImage(any, { images: [{ b64Json: 'AAAA' }] });
vendor.onSpeech(any, { audio: 'AAAA', format: 'mp3' });
vendor.onTranscription({ transcription: { text: 'Some words.' } });
vendor.onTranslation({ transcription: { text: 'Some words.' } });
vendor.onEmbedding(any, { embedding: [0.25, 0.5] });
vendor.onMessage(any, { content: 'Some words.', usage });
await vendor.start();
process.on('SIGTERM', () => process.exit(0));
